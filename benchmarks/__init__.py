"""How fast sandboxio is beside what else there is: ratios, taken interleaved in one run on one machine.

``python -m benchmarks`` measures and writes JSON; ``python -m benchmarks --check`` compares with the bounds.
"""
