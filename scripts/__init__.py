"""What is run by hand, as `python -m scripts.ROOM.NAME` from the top of the checkout: training, benchmarks, checks."""
