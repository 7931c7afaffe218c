"""The wording of questions about two subjects: relations stated as lists, and comparisons of numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ListRelation:
  """Wording of a relation whose objects are stated together: `{o}` is 'a, b and c'.

  Attributes:
    statements, lookups: as in `Relation`.
    shared: questions for the one object that `{a}` and `{b}` have in common.
    claims: statements to be judged about one object `{o}` of `{s}`.
    clause: 'which ...' clause for an object of `{s}`, to be joined with that of another list.
    noun: what the objects are.
  """

  statements: tuple[str, ...]
  lookups: tuple[str, ...]
  shared: tuple[str, ...]
  claims: tuple[str, ...]
  clause: str
  noun: str


LISTS: dict[str, ListRelation] = {
    'borders': ListRelation(
        ('{s} shares land borders with {o}.', 'The land borders of {s} are with {o}.'),
        ('With which countries does {s} share land borders?',),
        ('Which country borders both {a} and {b}?', 'Which country is a neighbor of {a} as well as of {b}?',
         'Which country lies next to {a} and also next to {b}?'),
        ('{s} has a land border with {o}.', '{o} is a neighbor of {s}.'),
        'is a neighbor of {s}', 'country'),
    'export': ListRelation(
        ('The main export goods of {s} are {o}.', 'The main export goods sold abroad by {s} are {o}.'),
        ('What are the main export goods of {s}?',),
        ('Which product is among the top exports of both {a} and {b}?',
         'Both {a} and {b} sell which leading product abroad?'),
        ('{s} counts {o} among its top exports.',),
        'is among the top exports of {s}', 'product'),
    'crop': ListRelation(
        ('The leading farm products of {s} are {o}.',
         'Farms in {s} produce mainly {o}, its leading farm products.'),
        ('What are the leading farm products of {s}?',),
        ('Which farm product is a leading one in both {a} and {b}?',
         'What do the farmers of {a} and those of {b} both produce in large amounts?'),
        ('{s} counts {o} among its leading farm products.',),
        'is among the main farm products of {s}', 'product'),
    'natural_resource': ListRelation(
        ('The natural resources of {s} include {o}.', 'Among the natural resources of {s} are {o}.'),
        ('What are the natural resources of {s}?',),
        ('Which natural resource do {a} and {b} have in common?',
         'Which resource can be drawn from nature in {a} and in {b} alike?'),
        ('{o} can be found among the natural resources of {s}.',),
        'is one of the riches that nature gave {s}', 'product'),
    'buyer': ListRelation(
        ('The leading export partners of {s} are {o}.', 'Leading export partners that buy from {s} are {o}.'),
        ('Which countries are the leading export partners of {s}?',),
        ('Which country is among the four biggest buyers of goods from both {a} and {b}?',
         'Both {a} and {b} sell much of their goods to which country?'),
        ('{o} is among the leading buyers of goods from {s}.',),
        'is among the four biggest buyers of goods from {s}', 'country'),
    'supplier': ListRelation(
        ('The leading import partners of {s} are {o}.', 'Leading import partners that sell to {s} are {o}.'),
        ('Which countries are the leading import partners of {s}?',),
        ('Which country is among the four biggest sellers of goods to both {a} and {b}?',
         'Both {a} and {b} buy much of their goods from which country?'),
        ('{o} is among the leading sellers of goods to {s}.',),
        'is among the four biggest sellers of goods to {s}', 'country'),
}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Wording of a comparison of two numbers; `more` and `less` ask for the larger and the smaller."""

  more: tuple[str, ...]
  less: tuple[str, ...]
  more_claim: str


COMPARISONS: dict[str, Comparison] = {
    'area': Comparison(
        ('Which country is larger in area, {a} or {b}?', 'Which of {a} and {b} covers more land?'),
        ('Which country is smaller in area, {a} or {b}?', 'Which of {a} and {b} covers less land?'),
        '{a} is larger in area than {b}.'),
    'population': Comparison(
        ('Which country has more inhabitants, {a} or {b}?', 'Of {a} and {b}, which is home to more people?'),
        ('Which country has fewer inhabitants, {a} or {b}?',
         'Of {a} and {b}, which is home to fewer people?'),
        '{a} has more inhabitants than {b}.'),
    'coastline': Comparison(
        ('Which country has the longer coast, {a} or {b}?', 'Of {a} and {b}, which has the longer shore?'),
        ('Which country has the shorter coast, {a} or {b}?',),
        '{a} has a longer coast than {b}.'),
    'gdp_per_person': Comparison(
        ('Which country is richer per head, {a} or {b}?',
         'Of {a} and {b}, where is output per inhabitant greater?'),
        ('Which country is poorer per head, {a} or {b}?',),
        '{a} is richer per head than {b}.'),
    'median_age': Comparison(
        ('Which country has the older population, {a} or {b}?',),
        ('Which country has the younger population, {a} or {b}?',
         'Of {a} and {b}, where are people younger on the whole?'),
        'The population of {a} is older than that of {b}.'),
    'life_expectancy': Comparison(
        ('In which country do people live longer, {a} or {b}?',),
        ('In which country are lives shorter, {a} or {b}?',),
        'People live longer in {a} than in {b}.'),
    'railways': Comparison(
        ('Which country has the longer railroad network, {a} or {b}?',),
        ('Which country has the shorter railroad network, {a} or {b}?',),
        '{a} has a longer railroad network than {b}.'),
    'independence_year': Comparison(
        ('Which country became independent later, {a} or {b}?',),
        ('Which country became independent first, {a} or {b}?',
         'Of {a} and {b}, which has been independent longer?'),
        '{a} became independent after {b} did.'),
    'head_of_state_since': Comparison(
        ('Which country has the head of state who came to office more recently, {a} or {b}?',),
        ('Whose current head of state came to office earlier, that of {a} or that of {b}?',),
        'The current head of state of {a} came to office later than that of {b}.'),
    'elevation': Comparison(
        ('Which mountain is higher, {a} or {b}?', 'Of {a} and {b}, which rises higher?'),
        ('Which mountain is lower, {a} or {b}?',),
        '{a} is higher than {b}.'),
    'city_population': Comparison(
        ('Which city has more inhabitants, {a} or {b}?', 'Of the cities {a} and {b}, which is bigger?'),
        ('Which city has fewer inhabitants, {a} or {b}?',),
        'The city of {a} has more inhabitants than {b}.'),
    'airport_elevation': Comparison(
        ('Which airport lies higher, {a} or {b}?',),
        ('Which airport lies lower, {a} or {b}?', 'Of {a} and {b}, which is closer to sea level?'),
        '{a} lies higher than {b}.'),
}
