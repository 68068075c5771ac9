"""Long documents made by a seeded generator: what the evaluation's prompts are about.

Each writer yields pieces of text without end, the same for the same generator state.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_PEOPLE = [
    "Amara",
    "Bashir",
    "Chiara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Hiro",
    "Ines",
    "Jonas",
    "Kavya",
    "Lars",
    "Mireille",
    "Nikhil",
    "Oksana",
    "Pedro",
]
_TOPICS = [
    "the heating system",
    "the spring budget",
    "the visitor centre",
    "the new ferry timetable",
    "the school kitchen",
    "the water meter survey",
    "the library extension",
    "the harbour wall",
    "the cycle route",
    "the archive move",
    "the night bus",
    "the solar roof",
    "the summer festival",
    "the hospital car park",
    "the seed bank",
    "the training course",
]
_PLACES = [
    "Aldmoor",
    "Brackenfield",
    "Castellan",
    "Dunmere",
    "Eastwick",
    "Fernhollow",
    "Grayport",
    "Hollin",
    "Isleworth",
    "Juniper",
    "Kestrel",
]
_REASONS = [
    "the supplier doubled its price",
    "two engineers are on leave",
    "the permit has not come back",
    "the old plans were wrong",
    "residents asked for quieter hours",
    "the tests in March failed",
    "the ground is softer than expected",
    "the grant runs out in June",
    "nobody had counted the winter traffic",
    "the contract names another date",
]
_STEPS = [
    "ask for a second quote",
    "split the work into two phases",
    "publish the figures before the next meeting",
    "borrow equipment from the neighbouring town",
    "move the deadline by three weeks",
    "interview the users again",
    "close the road on Sundays only",
    "train four volunteers",
    "write to the ministry",
    "repeat the measurement in dry weather",
]
_OPINIONS = [
    "I am not convinced that this is enough",
    "That matches what we saw last year",
    "We should be careful with that number",
    "I would rather wait for the report",
    "This is the first good news in weeks",
    "Nobody will thank us for the delay",
    "It is simpler than it looks",
    "The committee will want to see proof",
]
_SERVICES = [
    "gateway",
    "billing",
    "search",
    "inventory",
    "mailer",
    "scheduler",
    "ledger",
    "thumbnails",
    "sessions",
    "replica",
]
_SYMPTOMS = [
    "timed out after a configuration push",
    "ran out of file handles",
    "answered with stale prices",
    "restarted four times in a row",
    "lost its connection to the primary",
    "queued requests faster than it could serve them",
    "rejected valid certificates",
    "wrote duplicate rows",
    "stopped reporting its metrics",
]
_REMEDIES = [
    "was rolled back",
    "was moved to a larger machine",
    "had its cache cleared by hand",
    "was given a longer timeout",
    "was cut off from the batch jobs",
    "had one bad disk replaced",
    "was pinned to the previous release",
    "was restarted with verbose logging",
]
_ANIMALS = ["otter", "heron", "lynx", "badger", "kestrel", "salamander", "bumblebee", "marten", "seal", "dormouse"]
_FINDINGS = [
    "prefers the shaded side of the valley",
    "breeds two weeks earlier than in the last decade",
    "avoids the fields that were sprayed",
    "travels further at night than was thought",
    "shares its winter shelter with another species",
    "returns to the same stones every spring",
    "feeds mainly on what the flood leaves behind",
    "is counted most easily after rain",
]


def meeting(rng: random.Random) -> Iterator[str]:
    """Minutes of a council: who said what on which topic."""
    people, place = rng.sample(_PEOPLE, 5), rng.choice(_PLACES)
    yield f"Minutes of the {place} council, chaired by {people[0]}.\n"
    while True:
        topic = rng.choice(_TOPICS)
        yield f"\n{people[0]}: Let us turn to {topic}. {rng.choice(people[1:])}, where do we stand?\n"
        for _ in range(rng.randint(2, 6)):
            said = [
                f"For {topic} we have spent {rng.randint(3, 980)} thousand of {rng.randint(981, 2500)} thousand.",
                f"We are {rng.randint(2, 15)} weeks late because {rng.choice(_REASONS)}.",
                f"{rng.choice(_OPINIONS)}, {rng.choice(people)}.",
                f"My proposal is to {rng.choice(_STEPS)}, and if that fails to {rng.choice(_STEPS)}.",
                f"In {rng.choice(_PLACES)} they had the same trouble: {rng.choice(_REASONS)}.",
                f"Can we {rng.choice(_STEPS)} without {rng.choice(people)}?",
            ]
            yield f"{rng.choice(people)}: {' '.join(rng.sample(said, rng.randint(1, 3)))}\n"
        yield f"{people[0]}: Agreed. {rng.choice(people[1:])} will {rng.choice(_STEPS)} by day {rng.randint(1, 28)}.\n"


def incidents(rng: random.Random) -> Iterator[str]:
    """An operations diary: one incident a line, with its day and time."""
    yield f"Operations diary of the {rng.choice(_PLACES)} data centre.\n"
    day, minute = 1, rng.randint(0, 300)
    while True:
        minute += rng.randint(4, 190)
        day, minute = day + minute // 1440, minute % 1440
        service, other = rng.sample(_SERVICES, 2)
        yield f"Day {day}, {minute // 60:02}:{minute % 60:02}. The {service} service {rng.choice(_SYMPTOMS)}. "
        detail = [
            f"About {rng.randint(2, 90)} percent of its requests failed for {rng.randint(3, 75)} minutes.",
            f"{rng.choice(_PEOPLE)} suspected the {other} service, which {rng.choice(_SYMPTOMS)} the day before.",
            f"Customers in {rng.choice(_PLACES)} noticed first.",
            f"The {other} service {rng.choice(_REMEDIES)}; that did not help.",
            f"An alert had been silenced because {rng.choice(_REASONS)}.",
        ]
        yield f"{' '.join(rng.sample(detail, rng.randint(1, 3)))} "
        yield f"In the end the {service} service {rng.choice(_REMEDIES)} by {rng.choice(_PEOPLE)}.\n"


def field_notes(rng: random.Random) -> Iterator[str]:
    """Observations of animals, a paragraph a place."""
    yield f"Field notes from the {rng.choice(_PLACES)} reserve, collected by {rng.choice(_PEOPLE)}.\n"
    while True:
        animal, place = rng.choice(_ANIMALS), rng.choice(_PLACES)
        yield f"\nAt {place} the {animal} {rng.choice(_FINDINGS)}. "
        notes = [
            f"{rng.choice(_PEOPLE)} counted {rng.randint(2, 240)} in {rng.randint(2, 30)} visits.",
            f"Last year it was {rng.randint(2, 240)}, but {rng.choice(_REASONS)}.",
            f"The {rng.choice(_ANIMALS)} nearby {rng.choice(_FINDINGS)}, which may explain it.",
            f"{rng.choice(_PEOPLE)} disagrees and wants to {rng.choice(_STEPS)}.",
            f"The temperature was {rng.randint(-6, 29)} degrees and the wind came from {rng.choice(_PLACES)}.",
        ]
        yield f"{' '.join(rng.sample(notes, rng.randint(2, 4)))}\n"
