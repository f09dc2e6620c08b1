"""What the wrong scenarios refer to."""


def measure(threads):
    return {"time_s": threads}


def reporting(report):
    return {"time_s": report}


def score(speed, ratio):
    return speed / ratio


def fits(threads, memory):
    return threads <= memory


class Bench:
    def measure(self, threads):
        return {"time_s": threads}
