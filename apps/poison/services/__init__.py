"""Change poisons and their redrives. Every service locks the poisons first."""
