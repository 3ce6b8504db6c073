"""One script per headline number; results/ holds the committed record of the last run."""
