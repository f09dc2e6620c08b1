"""What the wrong scenarios refer to."""


def measure(threads):
    return {"time_s": threads}


def score(speed, ratio):
    return speed / ratio


def fits(threads, memory):
    return threads <= memory
