"""Two worked examples for every role, for few-shot prompting of a model that was not tuned.

People, places and works in passages are invented, so that no example gives away the answer of a task.
"""

import dataclasses

from acesearch_jax.data.tasks import Passage


@dataclasses.dataclass(frozen=True)
class Example:
  """What the prompt of one example is made of, and the reply to it."""

  question: str
  reply: str
  passages: tuple[Passage, ...] = ()
  answered: tuple[tuple[str, str], ...] = ()


def _passage(title: str, text: str) -> Passage:
  return Passage(title, title, text)


_LANTERN = _passage('The Glass Lantern', 'The Glass Lantern is a 1964 novel by Orla Venn.')
_VENN = _passage('Orla Venn', 'Orla Venn was a writer who was born in Tarnholm.')
_OSSEL = _passage('Ossel', 'Ossel is a river town in the north of Maravia. It has a glass museum.')
_KESTRIN = _passage('Kestrin Bridge', 'Kestrin Bridge was opened in 1931 by the engineer Paul Adero.')
_DOLM = _passage('Dolm Tower', 'Dolm Tower was built in 1907 and is 80 metres high.')
_MARAVIA = _passage('Maravia', 'Maravia is an inland country. Its capital is Lindau Port.')

EXAMPLES: dict[tuple[str, str], tuple[Example, Example]] = {
    ('decompose', 'qa'): (
        Example(
            'In which town was the author of The Glass Lantern born?',
            '### Q1: Who is the author of The Glass Lantern?\n### Q2: In which town was #1 born?',
        ),
        Example(
            'Which was built first, Kestrin Bridge or Dolm Tower?',
            '### Q1: When was Kestrin Bridge built?\n### Q2: When was Dolm Tower built?\n'
            '### Q3: Which is earlier, #1 or #2?',
        ),
    ),
    ('decompose', 'claim'): (
        Example(
            'The author of The Glass Lantern was born in Tarnholm.',
            '### Q1: Who is the author of The Glass Lantern?\n### Q2: #1 was born in Tarnholm.',
        ),
        Example(
            'Kestrin Bridge and Dolm Tower were both built before 1920.',
            '### Q1: Kestrin Bridge was built before 1920.\n### Q2: Dolm Tower was built before 1920.',
        ),
    ),
    ('step', 'qa'): (
        Example('Who is the author of The Glass Lantern?', 'Orla Venn', (_LANTERN, _OSSEL)),
        Example('What is the capital of Maravia?', 'Lindau Port', (_OSSEL, _MARAVIA)),
    ),
    ('step', 'claim'): (
        Example('Orla Venn was born in Tarnholm.', 'Yes', (_VENN, _OSSEL)),
        Example('Kestrin Bridge was opened before 1920.', 'No', (_DOLM, _KESTRIN)),
    ),
    ('final', 'qa'): (
        Example(
            'In which town was the author of The Glass Lantern born?',
            'The Glass Lantern is by Orla Venn, who was born in Tarnholm. <answer>Tarnholm</answer>',
            (_LANTERN, _VENN),
            (
                ('Who is the author of The Glass Lantern?', 'Orla Venn'),
                ('In which town was Orla Venn born?', 'Tarnholm'),
            ),
        ),
        Example(
            'Which was built first, Kestrin Bridge or Dolm Tower?',
            'Dolm Tower is from 1907 and Kestrin Bridge from 1931. <answer>Dolm Tower</answer>',
            (_KESTRIN, _DOLM),
            (('When was Kestrin Bridge built?', '1931'), ('When was Dolm Tower built?', '1907')),
        ),
    ),
    ('final', 'claim'): (
        Example(
            'The author of The Glass Lantern was born in Tarnholm.',
            'The Glass Lantern is by Orla Venn, who was born in Tarnholm. <answer>Yes</answer>',
            (_LANTERN, _VENN),
            (
                ('Who is the author of The Glass Lantern?', 'Orla Venn'),
                ('Orla Venn was born in Tarnholm.', 'Yes'),
            ),
        ),
        Example(
            'Kestrin Bridge and Dolm Tower were both built before 1920.',
            'Dolm Tower is from 1907, but Kestrin Bridge is from 1931. <answer>No</answer>',
            (_KESTRIN, _DOLM),
            (('Kestrin Bridge was built before 1920.', 'No'), ('Dolm Tower was built before 1920.', 'Yes')),
        ),
    ),
    ('retrieved', 'qa'): (
        Example(
            'In which town was the author of The Glass Lantern born?',
            'The Glass Lantern is by Orla Venn, who was born in Tarnholm. <answer>Tarnholm</answer>',
            (_LANTERN, _VENN),
        ),
        Example(
            'What is the capital of the country where Ossel lies?',
            'Ossel lies in Maravia, whose capital is Lindau Port. <answer>Lindau Port</answer>',
            (_OSSEL, _MARAVIA),
        ),
    ),
    ('retrieved', 'claim'): (
        Example(
            'The author of The Glass Lantern was born in Tarnholm.',
            'The Glass Lantern is by Orla Venn, who was born in Tarnholm. <answer>Yes</answer>',
            (_LANTERN, _VENN),
        ),
        Example(
            'Kestrin Bridge and Dolm Tower were both built before 1920.',
            'Dolm Tower is from 1907, but Kestrin Bridge is from 1931. <answer>No</answer>',
            (_KESTRIN, _DOLM),
        ),
    ),
    ('direct', 'qa'): (
        Example(
            'How many legs do two spiders have in all?',
            'A spider has 8 legs, so two have 16. <answer>16</answer>',
        ),
        Example(
            'Which colour do blue and yellow paint make?',
            'Blue and yellow paint mix to green. <answer>green</answer>',
        ),
    ),
    ('direct', 'claim'): (
        Example(
            'A week has more days than a hand has fingers.',
            'A week has 7 days, a hand 5 fingers. <answer>Yes</answer>',
        ),
        Example('Ice is heavier than water.', 'Ice floats, so it is lighter than water. <answer>No</answer>'),
    ),
}
