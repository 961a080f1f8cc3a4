"""Sorts, multiplies and transforms arrays of numpy; the argument scales their sizes."""

import os
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy  # noqa: E402

scale = float(sys.argv[1])
source = numpy.random.default_rng(1)
values = source.standard_normal(int(1_000_000 * scale))
side = int(400 * scale**0.5)
matrix = source.standard_normal((side, side))
product = matrix @ matrix.T
order = numpy.argsort(values)
spectrum = numpy.fft.rfft(values[order] * values)
print(product.trace(), numpy.abs(spectrum).max(), numpy.histogram(values, bins=100)[0].max())
