"""Questions by which the precisions of a model are compared: short ones, of many kinds."""

from __future__ import annotations

PROMPTS: tuple[str, ...] = (
    "What makes a rainbow appear after rain?",
    "A train covers 180 km in two and a half hours. What is its average speed?",
    "Write a Python function that tells whether a word reads the same backwards.",
    "List eight kitchen tools and what each is for.",
    "Summarise in one sentence: Salt marshes lie between land and sea. Twice a day the tide floods them. Few plants bear "
    "the salt, but those that do hold the mud together, and the coast behind them is safer in a storm.",
    "Who painted the ceiling of the Sistine Chapel, and how long did it take?",
    "Write a short letter to a neighbour whose dog barks at night.",
    "Translate into French: Where can I buy a ticket to the airport?",
    "Explain what a hash table is to someone who knows arrays.",
    "Maria has three times as many stamps as Paul. Together they have 96. How many has each?",
    "Give me a recipe for a simple tomato soup.",
    "Write a JavaScript function that removes duplicates from a list.",
    "What is the difference between weather and climate?",
    "Begin a story in which a clockmaker hears a clock strike thirteen.",
    "What are the pros and cons of working from home?",
    "Continue the sequence and say why: 3, 6, 11, 18, 27,",
    "Write an SQL query that finds the five customers who spent most in 2023.",
    "Name the planets of the solar system from the sun outwards.",
    "How does a vaccine work?",
    "A shirt costs $40 and is reduced by 15%. What does it cost now, and what do two cost?",
    "Write a polite reply to a guest who complains about a noisy room.",
    "Which three habits help most to sleep well?",
    "Describe the water cycle in five steps.",
    "Explain recursion, with the factorial as the example.",
)
