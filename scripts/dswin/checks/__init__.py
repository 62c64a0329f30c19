"""What `dswin verify` runs with the examined environment's own Python: standard library, torch and deepspeed only."""
