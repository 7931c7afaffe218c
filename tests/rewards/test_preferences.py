"""Preference mining against trees worked out by hand, and its invariants on random trees."""

import hypothesis
import hypothesis.strategies as st

from acesearch_jax.agents.rollout import PlanRollout, Rollout, Solution, Step
from acesearch_jax.agents.transcript import Segment, Transcript
from acesearch_jax.data.tasks import Task
from acesearch_jax.rewards.preferences import PairConfig, PreferencePair, mine_pairs

TASK = Task(id='t', kind='qa', question='?', answers=('x',))
ALL = PairConfig(min_gap=0.0, max_pairs_per_task=10)


def talk(prompt, response, finish='stop'):
  return Transcript(
      (Segment('prompt', prompt), Segment('policy', response, (0.0,) * len(response))), finish
  )


def solution(steps, final, reward):
  """steps: (prompt, response) of each sub-question; final: the same of the final answer."""
  steps = tuple(Step('', '', (), talk(*step), '') for step in steps)
  return Solution(steps, talk(*final), '', None, reward=reward)


def plan(response, solutions, reason='', finish='stop'):
  return PlanRollout(talk((1,), response, finish), '', (), reason, tuple(solutions))


def mine(*plans, config=ALL, seed=0):
  return mine_pairs([Rollout(TASK, 1, plans)], config, seed, 'f' * 16)


def key(pairs):
  return [(p.kind, p.prompt, p.chosen, p.rejected, p.chosen_reward, p.rejected_reward) for p in pairs]


def test_three_kinds_by_hand():
  good = plan(
      (10,),
      [
          solution([((2,), (20,)), ((3,), (30,))], ((4,), (40,)), 1.0),
          solution([((2,), (20,)), ((3,), (30,))], ((4,), (41,)), 0.0),
          solution([((2,), (21,)), ((5,), (50,))], ((6,), (60,)), 0.0),
      ],
  )
  bad = plan((11,), [solution([((7,), (70,))], ((8,), (80,)), 0.0)])
  unparsed = plan((12,), [], reason='no step')
  pairs = mine(good, bad, unparsed)
  kinds = {pair.kind: pair for pair in pairs}
  assert len(pairs) == 3
  assert kinds['plan'].chosen == (10,) and kinds['plan'].rejected in {(11,), (12,)}
  assert (kinds['plan'].chosen_reward, kinds['plan'].rejected_reward) == (1 / 3, 0.0)
  # After (2,): answer 20 led to rewards 1 and 0, answer 21 to 0.
  assert key([kinds['subanswer']]) == [('subanswer', (2,), (20,), (21,), 0.5, 0.0)]
  assert key([kinds['final']]) == [('final', (4,), (40,), (41,), 1.0, 0.0)]


def test_the_same_subquestion_in_two_plans_is_pooled():
  pairs = mine(
      plan((10,), [solution([((2,), (20,))], ((4,), (40,)), 1.0)]),
      plan((11,), [solution([((2,), (21,))], ((5,), (50,)), 0.0)]),
  )
  assert ('subanswer', (2,), (20,), (21,), 1.0, 0.0) in key(pairs)


def test_equal_rewards_make_no_pair():
  one = solution([((2,), (20,))], ((4,), (40,)), 1.0)
  other = solution([((2,), (21,))], ((4,), (41,)), 1.0)
  assert mine(plan((10,), [one, other]), plan((11,), [one, other])) == []


def test_min_gap():
  solutions = [solution([], ((4,), (40 + i,)), float(i == 0)) for i in range(4)]
  plans = plan((10,), solutions), plan((11,), [])
  assert [p.kind for p in mine(*plans, config=PairConfig(min_gap=0.3))] == ['final']
  assert {p.kind for p in mine(*plans, config=PairConfig(min_gap=0.25))} == {'plan', 'final'}


def test_an_unfinished_response_is_never_chosen():
  right = plan((10,), [solution([], ((4,), (40,)), 1.0)], finish='length')
  wrong = plan((11,), [solution([], ((5,), (50,)), 0.0)])
  assert mine(right, wrong) == []
  cut = plan((11,), wrong.solutions, '', 'length')
  assert [p.rejected for p in mine(plan((10,), right.solutions), cut)] == [(11,)]


def test_ties_are_drawn_by_the_seed():
  plans = [plan((10 + i,), [solution([], ((4 + i,), (40,)), float(i < 5))]) for i in range(10)]
  seen = {mine(*plans, seed=seed)[0].chosen for seed in range(30)}
  assert len(seen) > 1
  assert key(mine(*plans, seed=3)) == key(mine(*plans, seed=3))


def test_caps_keep_the_widest_gaps_and_are_seeded():
  solutions = []
  for prompt, rewards in (((4,), (1, 0)), ((5,), (1, 1, 0, 1)), ((6,), (1, 0))):
    solutions += [solution([], (prompt, (9, 40 + i)), float(r)) for i, r in enumerate(rewards)]
  tree = Rollout(TASK, 1, (plan((10,), solutions),))
  capped = mine_pairs([tree], PairConfig(max_pairs_per_task=2), 0, '')
  assert len(capped) == 2
  forest = [Rollout(Task(f't{i}', 'qa', '?', ('x',)), 1, tree.plans) for i in range(20)]
  sampled = mine_pairs(forest, PairConfig(max_pairs_per_task=1, max_pairs=7), 0, '')
  assert len(sampled) == 7
  assert key(sampled) == key(mine_pairs(forest, PairConfig(max_pairs_per_task=1, max_pairs=7), 0, ''))


tokens = st.integers(0, 3).map(lambda i: (i,))
answered = st.tuples(st.tuples(st.integers(10, 13)), st.tuples(st.integers(20, 23)))
solutions = st.builds(
    solution, st.lists(answered, max_size=3), answered, st.sampled_from([0.0, 0.5, 1.0])
)
trees = st.lists(st.builds(plan, st.tuples(st.integers(30, 33)), st.lists(solutions, max_size=4)), max_size=4)


@hypothesis.given(trees)
@hypothesis.settings(deadline=None, max_examples=100)
def test_invariants(plans):
  for pair in mine(*plans):
    assert pair.chosen != pair.rejected
    assert pair.chosen_reward > pair.rejected_reward
    assert PreferencePair.from_json(pair.to_json()) == pair
    said = {(t.prompt, t.response) for t in Rollout(TASK, 1, tuple(plans)).transcripts}
    assert {(pair.prompt, pair.chosen), (pair.prompt, pair.rejected)} <= said
