"""Methods to compare with, one file each.

`linear` and `raw` are also transfer methods and know nothing of the rest; the others are `Method`s, which are
evaluated.
"""
