"""Instructions to let a model write text of every kind, for the training of drafts and heads.

Templates times topics, drawn with a seed: code, edits of given code, summaries and questions over a given
passage, arithmetic, translation, extraction to JSON, stories, lists, letters and talk. None of the bench's
own prompts is among them.
"""

import random
from collections.abc import Callable

TOPICS = (
    "black holes|the Roman Empire|sourdough bread|electric cars|photosynthesis|the French Revolution|chess openings|"
    "coral reefs|jazz music|vaccines|volcanoes|the stock market|meditation|the moon landing|honey bees|glaciers|"
    "public libraries|the water cycle|renewable energy|ancient Egypt|machine learning|gravity|coffee|the human heart|"
    "earthquakes|the Silk Road|photography|climate change|dinosaurs|the Great Wall of China|healthy sleep|inflation|"
    "space telescopes|recycling|democracy|the violin|DNA|whales|poetry|the printing press|tea ceremonies|robots|"
    "antibiotics|rainforests|the Olympic Games|solar panels|budgeting|job interviews|remote work|running a marathon|"
    "time management|learning a language|houseplants|camping|first aid|bicycles|the Renaissance|penguins|clouds|"
    "electricity|the internet|chocolate|migration of birds|the immune system|steam engines|Shakespeare|origami|"
    "probability|prime numbers|the periodic table|atoms|sharks|deserts|castles|knitting|public speaking|friendship|"
    "stress|nutrition|vegetarian cooking|dog training|cats|tides|lightning|the ozone layer|bridges|skyscrapers|"
    "databases|encryption|operating systems|computer networks|version control|unit tests|web browsers|compilers"
).split("|")
PEOPLE = "Anna|Ben|Carlos|Dana|Emeka|Fatima|George|Hana|Ivan|Julia|Kofi|Lena|Marco|Nora|Omar|Priya|Sam|Yuki".split("|")
PLACES = (
    "a small fishing village|a space station|an old bakery|a mountain hut|a crowded market|an abandoned theatre|"
    "a night train|an island school|a flower shop|a desert town|a castle kitchen|a ferry|a repair shop|a snowy forest"
).split("|")
THINGS = (
    "a broken watch|a blue umbrella|a lost dog|a secret map|a silver key|a talking parrot|an unfinished song|a red kite|"
    "a strange coin|a forgotten recipe|an old camera|a paper boat|a wooden box|a letter without a sender"
).split("|")
MOODS = "funny|sad|mysterious|hopeful|exciting|gentle|scary|surprising".split("|")
AUDIENCES = "a ten-year-old|a beginner|a busy manager|a student|my grandmother|a curious friend|an expert".split("|")
LANGUAGES = "Python|Python|Python|JavaScript|C|Java|Go|Rust|TypeScript|C++|Bash|SQL".split("|")
HUMAN_LANGUAGES = "French|German|Spanish|Italian|Russian|Chinese|Portuguese".split("|")
FUNCTIONS = (
    "reverses a string|counts the words in a text|finds the largest number in a list|checks if a number is prime|"
    "computes the factorial of n|returns the n-th Fibonacci number|removes duplicates from a list|sorts a list of "
    "people by age|converts Celsius to Fahrenheit|counts the vowels in a string|flattens a nested list|merges two "
    "sorted lists|performs a binary search|reads a CSV file and sums a column|parses a date string|computes the "
    "average of a list|finds the common elements of two lists|validates an e-mail address|generates a random password|"
    "counts the lines in a file|rotates a list by k places|computes the greatest common divisor|converts a number to "
    "binary|groups words by their first letter|finds the longest word in a sentence|implements a stack|implements a "
    "queue|implements a linked list|transposes a matrix|multiplies two matrices|checks for balanced brackets|inverts a "
    "dictionary|renames all files in a folder|downloads a web page|measures the run time of another function|caches "
    "results|retries a failing call three times|formats bytes as a human-readable size|computes a moving average"
).split("|")
SNIPPETS = (
    "def area(width, height):\n    return width * height\n\n\ndef perimeter(width, height):\n    return 2 * (width + height)",
    "class Account:\n    def __init__(self, owner, balance=0):\n        self.owner = owner\n        self.balance = balance\n\n"
    "    def deposit(self, amount):\n        self.balance += amount\n\n    def withdraw(self, amount):\n"
    "        self.balance -= amount",
    "def load(path):\n    with open(path) as file:\n        lines = file.readlines()\n    result = []\n"
    "    for line in lines:\n        name, value = line.split(',')\n        result.append((name, int(value)))\n    return result",
    "function total(items) {\n  let sum = 0;\n  for (const item of items) {\n    sum += item.price * item.count;\n  }\n"
    "  return sum;\n}",
    "struct Node {\n    int value;\n    struct Node *next;\n};\n\nint length(struct Node *head) {\n    int n = 0;\n"
    "    while (head) {\n        n++;\n        head = head->next;\n    }\n    return n;\n}",
    "import random\n\n\ndef roll(n):\n    return [random.randint(1, 6) for _ in range(n)]\n\n\nif __name__ == '__main__':\n"
    "    print(roll(5))",
    "def grade(score):\n    if score >= 90:\n        return 'A'\n    if score >= 75:\n        return 'B'\n"
    "    if score >= 60:\n        return 'C'\n    return 'F'",
    "class Timer:\n    def start(self):\n        self.began = time.time()\n\n    def stop(self):\n"
    "        return time.time() - self.began",
)
EDITS = (
    "Add type hints to this code and give back the whole file.|Add a docstring to every function and leave the rest as "
    "it is.|Rename the first function or class to `{name}` everywhere and repeat the whole code.|Add a check that raises "
    "an error for negative numbers. Give back the complete code.|Add comments to the code below, without changing it.|"
    "Explain what this code does, line by line.|Find a bug or a weakness in this code and correct it.|Write three unit "
    "tests for this code."
).split("|")
SENTENCES = (
    "The museum opened in {year} in a former {building} and now shows more than {n} objects.|Every {day}, volunteers "
    "meet at the {building} to repair {object}s for the people of the district.|{person} first came here as a student "
    "and never left.|In winter the path is closed, but the {building} stays open until {hour} o'clock.|The council has "
    "set aside {n} euros for new {object}s.|Visitors should bring good shoes, water and something to eat.|Nobody knows "
    "who built the first {building}, though several stories are told.|In {year} a flood destroyed the lower rooms, and "
    "the {object}s were saved by {person}.|Tickets cost {small} euros; children under {small} pay nothing.|Scientists "
    "from three countries have studied the site since {year}.|The old {building} is a home for swallows, bats and a "
    "family of foxes.|Last year about {n} people came, half of them from abroad.|{person} and {person2} plan to write a "
    "book about it.|The {object} on the north wall is the oldest of its kind.|Some neighbours complained about the "
    "noise, so music now ends at {hour} o'clock.|A ticket for the whole {day} costs {n} euros less than it did in {year}."
).split("|")
BUILDINGS = "mill|station|chapel|factory|school|barn|lighthouse|town hall|brewery|warehouse|greenhouse".split("|")
OBJECTS = "bicycle|lamp|clock|map|painting|chair|boat|bell|window|book|radio|tool".split("|")
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday".split("|")
PLAIN = (
    "Explain {topic} to {audience}.|What is {topic}?|Why does {topic} matter?|Write a short paragraph about {topic}.|"
    "List {small} facts about {topic}.|Give me {small} tips about {topic}.|What are the advantages and disadvantages of "
    "{topic}?|Compare {topic} and {topic2}.|How did {topic} change over time?|Write an introduction for an essay about "
    "{topic}.|Make a quiz with {small} questions about {topic}, with answers.|Describe {topic} in three sentences.|I know "
    "nothing about {topic}. Where should I begin?|What are common mistakes people make with {topic}?|Write a poem about "
    "{topic}.|Give a step-by-step guide to {topic} for {audience}.|Write a dialogue between {person} and {person2} about "
    "{topic}.|Summarise the history of {topic}.|Make a table that compares {topic} and {topic2}.|Write a headline and a "
    "short news article about {topic}.|What would happen without {topic}?|Write five search queries about {topic}."
).split("|")
STORIES = (
    "Write a short {mood} story about {person}, who finds {thing} in {place}.|Tell a {mood} bedtime story in which {person} "
    "and {person2} travel to {place}.|Begin a novel that is set in {place}. The tone is {mood}.|Write a {mood} scene in "
    "which {person} gives {thing} to {person2}.|Write a fable about {thing} with a moral at the end."
).split("|")
TALK = (
    "Hi! How are you today?|Write a polite e-mail from {person} to {person2} that asks for a day off on {day}.|I feel tired "
    "all the time. What can I do?|Suggest {small} names for a shop that sells {object}s.|Help me plan a {day} evening with "
    "friends.|Write an invitation to a party at {place}.|{person} forgot my birthday. What should I say?|Write a thank-you "
    "note to {person} for {thing}.|Recommend a hobby for {audience}.|Can you give me a recipe with {small} ingredients?|Write "
    "a complaint about a {object} that broke after {small} days.|What should I ask in an interview at a {building}?|Rewrite "
    "this in a formal tone: hey {person}, can't make it on {day}, sorry, let's meet another time.|Correct the grammar: "
    "{person} have went to the {building} on {day} and buyed {small} {object}s."
).split("|")
MATH = (
    "{person} has {n} {object}s and gives {small} of them to each of {small2} friends. How many are left?|A {object} costs "
    "{n} euros. What do {small} of them cost with a discount of {small2}0 %?|What is {n} times {small}? Show the steps.|"
    "A train travels {n} km in {small} hours. How fast is it?|Solve for x: {small}x + {small2} = {n}.|{person} reads {small} "
    "pages a day. How long does a book of {n} pages take?|What is the average of {n}, {small} and {small2}?|Convert {n} "
    "minutes to hours and minutes."
).split("|")
PASSAGE_TASKS = (
    "Summarise this text in two sentences.|Give a summary with two direct quotes.|Answer from the text: which years and "
    "numbers does it name?|Who is mentioned in the text, and what is said of them?|Rewrite the text in simpler words.|"
    "Repeat the text word for word.|Give the text a title and list its main points.|Change every number to the next higher "
    "one and repeat the text.|Translate the text into {human}.|Return the facts of this text as a JSON object.|Correct the "
    "text where needed and give back the whole of it.|Answer in full sentences: when does it open, and what does it cost?"
).split("|")
RECORD_TASKS = (
    'Return a JSON object with the keys "name", "age", "city" and "hobbies" for this person: {person}, {n} years old, lives '
    "in {place} and likes {topic} and {topic2}.|Write a JSON list of {small} made-up {object}s with id, name and price.|Turn "
    "this into CSV with a header: {person} bought {small} {object}s on {day}; {person2} bought {small2}.|Write a YAML file "
    "that configures a server for {topic}.|Make a Markdown table of {small} {object}s with columns name, weight and price."
).split("|")


def instruction(rng: random.Random) -> str:
    """One message of a user."""
    kinds: tuple[tuple[int, Callable[[random.Random], str]], ...] = (
        (26, lambda r: _fill(r, PLAIN)),
        (14, lambda r: _fill(r, STORIES)),
        (10, lambda r: _fill(r, TALK)),
        (10, lambda r: _fill(r, MATH)),
        (6, lambda r: _fill(r, RECORD_TASKS)),
        (14, _code),
        (8, _edit),
        (12, _passage),
    )
    (_, make), *_ = rng.choices(kinds, [weight for weight, _ in kinds])
    return make(rng)


def _fill(rng: random.Random, templates: list[str]) -> str:
    return rng.choice(templates).format(**_words(rng))


def _words(rng: random.Random) -> dict[str, object]:
    topic, topic2 = rng.sample(TOPICS, 2)
    person, person2 = rng.sample(PEOPLE, 2)
    return {
        "topic": topic,
        "topic2": topic2,
        "person": person,
        "person2": person2,
        "name": f"{rng.choice(OBJECTS)}_{rng.choice(OBJECTS)}",
        "place": rng.choice(PLACES),
        "thing": rng.choice(THINGS),
        "mood": rng.choice(MOODS),
        "audience": rng.choice(AUDIENCES),
        "human": rng.choice(HUMAN_LANGUAGES),
        "building": rng.choice(BUILDINGS),
        "object": rng.choice(OBJECTS),
        "day": rng.choice(DAYS),
        "hour": rng.randint(7, 11),
        "year": rng.randint(1790, 2020),
        "n": rng.randint(12, 480),
        "small": rng.randint(3, 9),
        "small2": rng.randint(2, 8),
    }


def _code(rng: random.Random) -> str:
    language, task = rng.choice(LANGUAGES), rng.choice(FUNCTIONS)
    ending = rng.choice(("", " Add comments.", " Give only the code.", " Explain it briefly.", " Show an example call."))
    return rng.choice(
        (
            f"Write a {language} function that {task}.{ending}",
            f"How do I write code in {language} that {task}?{ending}",
            f"Write a complete {language} program that {task} and prints the result.{ending}",
        )
    )


def _edit(rng: random.Random) -> str:
    return f"{_fill(rng, EDITS)}\n\n```\n{rng.choice(SNIPPETS)}\n```"


def _passage(rng: random.Random) -> str:
    sentences = " ".join(s.format(**_words(rng)) for s in rng.sample(SENTENCES, rng.randint(3, 7)))
    return f"{_fill(rng, PASSAGE_TASKS)}\n\n{sentences}"
