"""What the right scenarios refer to."""


def measure(threads):
    return {"time_s": threads}


def staged(threads, report):
    for step in range(3):
        report(step, threads)
    return {"time_s": threads}


def anything(**arguments):
    return {"time_s": arguments["threads"]}


def score(time_s, duration_s):
    return -time_s - duration_s


def fits(threads):
    return threads <= 4
