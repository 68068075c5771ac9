"""Methods to compare with, one file each; all send everything as one stream."""
