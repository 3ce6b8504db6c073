"""What the kernel says about processes and memory; shared by the families of adapters."""
