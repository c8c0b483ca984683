"""Random cron expressions, biased towards the hours in which clocks are changed."""

import re
from random import Random

# cronsim takes `5-5/10` for `5/10`.
CRONSIM_DIFFERS = re.compile(r"\b([0-9]+)-\1/")


def one_of(random: Random, *choices: str) -> str:
    return random.choice(choices)


def random_time_field(random: Random, most: int) -> str:
    low = random.randint(0, most)
    high = random.randint(low, most)
    step = random.randint(1, most)
    return one_of(
        random,
        *("*", f"*/{step}", f"{low}", f"{low}", f"{low}-{high}", f"{low}-{high}/{step}"),
        *(f"{low}/{step}", f"{low},{high}", f"{low}-{high},{random.randint(0, most)}"),
    )


def random_hour(random: Random) -> str:
    night = random.randint(0, 4)
    return one_of(
        random,
        *("*", "*", f"*/{random.randint(1, 6)}", f"{night}", f"{night}", f"{night},23"),
        *(f"{night}-{night + 3}", "0-23", random_time_field(random, 23)),
    )


def random_days(random: Random) -> tuple[str, str, str]:
    """Day of month, month, day of week; mostly every day, or no window would see a fire."""
    if random.random() < 0.6:
        return "*", "*", "*"
    day, weekday = random.randint(1, 31), random.randint(0, 7)
    of_month = one_of(random, "*", "*", "*/2", f"{day}", f"1-{day}", "L", "LW", f"{day},L")
    of_week = one_of(
        random,
        *("*", "*", "*/2", f"{weekday}", "MON-FRI", "SAT,SUN", f"{weekday}L", f"SUN#{day % 5 + 1}"),
        *(f"{weekday},TUE#1", "5-7", "sun"),
    )
    month = one_of(random, "*", "*", "*", "MAR,OCT", "2-11", "*/2", "4/3")
    return of_month, month, of_week


def random_expression(random: Random, with_seconds: bool) -> str:
    of_month, month, of_week = random_days(random)
    minute = random_time_field(random, 59)
    text = f"{minute} {random_hour(random)} {of_month} {month} {of_week}"
    return f"{random_time_field(random, 59)} {text}" if with_seconds else text
