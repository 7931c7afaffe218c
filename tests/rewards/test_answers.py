"""Answer metrics against golden tables and an independent reading of the definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acesearch_jax.rewards.answers import (
    accuracy,
    exact_match,
    extract_answer,
    f1,
    normalise,
    normalise_verdict,
    numeric_match,
    parse_number,
)


@pytest.mark.parametrize(('text', 'normal'), [
    ('  The  Glass Lantern! ', 'glass lantern'),
    ('U.S.A.', 'usa'),
    ('An apple a day', 'apple day'),
    ('16th - century', '16th century'),
    ('1,000.5', '10005'),
    ('Two of Ten', '2 of 10'),
    ('TWENTY-TWO', 'twentytwo'),
    ('Pál Gábor’s', 'pál gábor’s'),
    ('a', 'a'),
    ('The The', 'the the'),
    ('!!!', '!!!'),
    ('', ''),
    (' \n', ''),
])
def test_normal_form(text, normal):
  assert normalise(text) == normal


@pytest.mark.parametrize(('prediction', 'golds', 'em', 'acc', 'f1_score'), [
    # What AceSearcher's released code scores wrongly.
    (None, ['Paris'], 0, 0, 0),
    (None, ['Yes'], 0, 0, 0),
    ('', ['Paris'], 0, 0, 0),
    ('not enough info', ['No'], 0, 0, 0),
    ('unknown', ['No'], 0, 0, 0),
    ('2', ['2'], 1, 1, 1),
    ('two', ['2'], 1, 1, 1),
    ('2', ['Two'], 1, 1, 1),
    ('a', ['Paris'], 0, 0, 0),
    # Ordinary answers.
    ('The Paris.', ['paris'], 1, 1, 1),
    ('Paris, France', ['Paris'], 0, 1, 2 / 3),
    ('Paris', ['Paris, France'], 0, 0, 2 / 3),
    ('Stuttgart', ['art'], 0, 0, 0),
    ('France Paris', ['Paris France'], 0, 0, 1),
    ('the city of New York', ['New York City', 'New York'], 0, 1, 6 / 7),
    ('new new york', ['york new'], 0, 0, 4 / 5),
    ('Rome', ['Paris', 'Rome'], 1, 1, 1),
    ('Rome', [], 0, 0, 0),
    ('', [''], 0, 0, 0),
    ('anything', ['', '...x'], 0, 0, 0),
    ('!!!', ['!!!'], 1, 1, 1),
    # Verdicts.
    ('Yes.', ['yes'], 1, 1, 1),
    ('YES', ['No'], 0, 0, 0),
    ('yes it is', ['Yes'], 0, 0, 0),
    ('no idea', ['No'], 0, 0, 0),
    ('no', ['no way'], 0, 0, 0),
    ('noanswer', ['answer noanswer'], 0, 0, 0),
])
def test_golden_scores(prediction, golds, em, acc, f1_score):
  assert exact_match(prediction, golds) == em
  assert accuracy(prediction, golds) == acc
  assert f1(prediction, golds) == pytest.approx(f1_score)


_phrases = st.text(st.sampled_from('ab The,.2two\n'), max_size=12)


@given(_phrases, st.lists(_phrases, max_size=3))
def test_metrics_are_ordered_and_bounded(prediction, golds):
  em, acc, score = exact_match(prediction, golds), accuracy(prediction, golds), f1(prediction, golds)
  assert em in (0, 1) and acc in (0, 1) and 0 <= score <= 1
  assert em <= acc and em <= score
  assert exact_match(prediction, [prediction]) == bool(prediction.strip())
  assert [exact_match(prediction, golds[::-1]), f1(prediction, golds[::-1])] == [em, score]


@given(st.lists(st.sampled_from('pqr'), min_size=1), st.lists(st.sampled_from('pqr'), min_size=1))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(ours, theirs):
  left = list(theirs)
  common = 0
  for token in ours:
    if token in left:
      left.remove(token)
      common += 1
  precision, recall = common / len(ours), common / len(theirs)
  expected = 2 * precision * recall / (precision + recall) if common else 0
  assert f1(' '.join(ours), [' '.join(theirs)]) == pytest.approx(expected)


@pytest.mark.parametrize(('text', 'strict', 'lenient'), [
    ('So. <answer>Paris</answer>', 'Paris', 'Paris'),
    ('<answer>\n Paris \n</answer> Done.', 'Paris', 'Paris'),
    ('<answer>a < b</answer>', 'a < b', 'a < b'),
    ('Paris', None, None),
    ('', None, None),
    ('<answer></answer>', None, None),
    ('<answer> \n</answer>', None, None),
    ('<answer>Paris', None, None),
    ('Paris</answer>', None, None),
    ('</answer>Paris<answer>', None, None),
    ('<Answer>Paris</Answer>', None, None),
    ('<answer>Rome</answer> or <answer>Paris</answer>', None, 'Paris'),
    ('<answer>Rome</answer> or <answer></answer>', None, 'Rome'),
    ('<answer>Rome <answer>Paris</answer>', None, 'Paris'),
    ('<answer>Paris</answer></answer>', None, 'Paris'),
    ('<answer>Paris</answer><answer>', None, 'Paris'),
    ('write <answer>span</answer> like so: <answer>Paris</answer>', None, 'Paris'),
    ('‹answer›Rome‹/answer› <answer>Paris</answer>', 'Paris', 'Paris'),
])
def test_extraction(text, strict, lenient):
  assert extract_answer(text) == strict
  assert extract_answer(text, strict=False) == lenient


@pytest.mark.parametrize(('text', 'verdict'), [
    ('Yes', 'yes'), (' no. ', 'no'), ('YES!', 'yes'), ('**No**', 'no'), ('yes yes', None),
    ('Yes, it is', None), ('True', None), ('', None), (None, None), ('none', None),
])  # fmt: skip
def test_verdicts(text, verdict):
  assert normalise_verdict(text) == verdict


@pytest.mark.parametrize(('prediction', 'gold', 'same'), [
    # (a) exact powers of ten, whatever the sign
    (5, 5, True), (5, -5, True), (5, 50, True), (-0.5, 5000, True), (1234.5, 123450, True),
    (5, 5.1, False), (5, 55, False),
    # (b) per cent and thousands within 0.15%
    (0.12345, 12.35, True), (0.1234, 12.35, True), (0.123, 12.35, False), (12.346, 12345, True),
    (1.2351, 123_500, True), (2, 41, False), (0.5005, 50, True), (0.5008, 50, False),
    # (c) rounded up to three decimals
    (0.00012, 0.0009, True), (0, 0, True), (0, 0.0005, False), (0.1111, 0.1119, True),
    (-0.1111, 0.1119, True),
    # (d) within 0.15% of the gold, with its sign
    (100.15, 100, True), (100.16, 100, False), (99.85, 100, True), (99.84, 100, False), (-100.1, 100, False),
    (-100.1, -100, True),
    # text
    ('$1,234.50 million', 1234.5, True), ('x = 12%', '0.12', True), ('about 3', 3, True),
    ('-1.5e3', -1500, True), ('.25', 0.25, True),
    ('between 3 and 4', 3, False), ('three', 3, False), ('', 0, False), (None, 0, False),
    ('nan', 1, False), (float('nan'), 1, False), (float('inf'), float('inf'), False), (True, 1, False),
    (1e308, 1e-308, False), (5e-324, 1.7e308, False), (1e308, 1e308, True), ('9' * 400, 9, False),
])  # fmt: skip
def test_numbers_match_by_the_official_rule(prediction, gold, same):
  assert numeric_match(prediction, gold) is same


@given(st.floats() | st.text(st.sampled_from('0123456789.,-e% =$')), st.floats() | st.integers())
def test_number_matching_never_fails_and_is_reflexive(prediction, gold):
  assert numeric_match(prediction, gold) in (True, False)
  number = parse_number(prediction)
  assert number is None or numeric_match(number, number)
