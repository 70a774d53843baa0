"""Colours of all plots, a palette for colour-blind readers.

References:
    Okabe and Ito (2008), Color universal design, https://jfly.uni-koeln.de/color/. Ottosson (2020),
    A perceptual color space for image processing, https://bottosson.github.io/posts/oklab/.
"""

from __future__ import annotations

import numpy as np

from pyro_opu.reports.readings import Array

BLACK, GREY = "#000000", "#777777"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

#: Classes and named curves, in this order; yellow, faint on white, comes last.
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)
#: Line styles, which tell curves apart in black and white too.
STYLES = ("-", "--", "-.", ":")
TEACHER, STUDENT = BLUE, ORANGE

#: Hues of the classes on maps, in degrees of Oklab: those of ``SERIES``, further apart where two of
#: them differ by lightness alone.
HUES = (250.0, 80.0, 165.0, 30.0, 345.0, 205.0, 115.0)
#: Lightness of a certain input on maps and of the least certain one; and chroma of a certain class.
#: At the upper lightness these colours and all of their mixtures are inside sRGB.
LIGHT, DARK, CHROMA = 0.85, 0.28, 0.075

_LMS_OF_LAB = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_RGB_OF_LMS = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def map_colours(probs: Array, shade: Array) -> Array:
    """Colours of a map, sRGB in [0, 1], ``(N, 3)``: two things that do not touch each other.

    In Oklab the lightness falls linearly with the shade and depends on nothing else; hue and
    saturation are those of the mean of the classes' colours under the class probabilities, grey
    where all are as likely.

    Args:
        probs: Class probabilities ``(N, C)``, at most seven classes.
        shade: Numbers from 0, light, to 1, dark, ``(N,)``.
    """
    angles = np.deg2rad(HUES[: probs.shape[1]])
    plane = CHROMA * probs @ np.stack([np.cos(angles), np.sin(angles)], -1)
    lab = np.concatenate([np.full((len(plane), 1), LIGHT), plane], -1)
    # All of Oklab times t is linear RGB times t^3: the hue stays, and so does the gamut.
    darkness = (1 - (1 - DARK / LIGHT) * shade[:, None]) ** 3
    linear = ((lab @ _LMS_OF_LAB.T) ** 3 @ _RGB_OF_LMS.T * darkness).clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
