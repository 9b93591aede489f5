"""File formats, one file each; coordinates are converted here, at the border, and nowhere else."""
