"""Records and summaries of evaluations."""

from acesearch_jax.agents.rollout import PlanRollout, Rollout, Solution
from acesearch_jax.agents.transcript import Segment, Transcript
from acesearch_jax.data.tasks import Task
from acesearch_jax.evaluation import scoring

PLAN = '### Q1: Where is Oslo?'


def _record(finish: str, text: str, answer: str | None) -> dict:
  task = Task(id='t', question='Where is Oslo?', answers=('Norway',), kind='qa')
  planned = Transcript((Segment('prompt', (1, 2)), Segment('policy', (3,), (-0.5,))))
  concluded = Transcript((Segment('prompt', (1, 2, 4)), Segment('policy', (), ())), finish)
  plan = PlanRollout(planned, PLAN, ('Where is Oslo?',), '', (Solution((), concluded, text, answer),))
  return scoring.evaluation_record(scoring.with_rewards(Rollout(task, 0, (plan,))))


def test_a_refused_prompt_is_counted_apart_from_a_missing_tag():
  right = _record('stop', '<answer>Norway</answer>', 'Norway')
  untagged, refused = _record('stop', 'Norway', None), _record('refused', '', None)
  assert [row['refused'] for row in (right, untagged, refused)] == [0, 0, 1]
  summary = scoring.summary([right, untagged, refused, refused])
  assert (summary['em'], summary['refused'], summary['untagged']) == (0.25, 0.5, 0.75)
