"""The page: two photographs, their matches, and everything that changes them, in a browser."""

from typing import Literal

Terms = Literal["none", "visual", "geometric", "both"]  # of context, added to the model's raw descriptors
Method = Literal["sift", Terms]  # OpenCV's descriptors, or the model's
