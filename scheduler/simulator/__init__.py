"""What-if: the same planner and reducer in virtual time."""
