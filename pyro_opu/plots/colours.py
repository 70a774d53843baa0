"""Colours of all plots, a palette for colour-blind readers.

References:
    Okabe and Ito (2008), Color universal design, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

BLACK, GREY = "#000000", "#777777"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

#: Classes and named curves, in this order; yellow, faint on white, comes last.
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)
#: Line styles, which tell curves apart in black and white too.
STYLES = ("-", "--", "-.", ":")
TEACHER, STUDENT = BLUE, ORANGE
