"""Published protocols, one file each; every method is compared on the same keypoints."""
