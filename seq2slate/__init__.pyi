# The public names, in the order of the flow, and where each is defined: the one list of them.
from .baselines.ceiling import LoggedCeiling as LoggedCeiling
from .baselines.ceiling import ShownCeiling as ShownCeiling
from .baselines.linear import RidgeRanker as RidgeRanker
from .baselines.out_of_fold import order_out_of_fold as order_out_of_fold
from .config import PRESETS as PRESETS
from .config import NetworkConfig as NetworkConfig
from .config import TrainingConfig as TrainingConfig
from .data.features import FeatureTransform as FeatureTransform
from .data.files import read as read
from .data.files import read_split as read_split
from .data.files import write as write
from .data.files import write_split as write_split
from .data.lists import Batch as Batch
from .data.lists import ItemLists as ItemLists
from .data.lists import Split as Split
from .data.parquet import from_table as from_table
from .data.parquet import stream_parquet as stream_parquet
from .data.parquet import to_table as to_table
from .data.ranker import BaseOrder as BaseOrder
from .data.ranker import RandomOrder as RandomOrder
from .data.ranker import Ranker as Ranker
from .data.ranker import rank_lists as rank_lists
from .data.ranker import reorder_lists as reorder_lists
from .data.summary import summarise as summarise
from .estimator import Estimator as Estimator
from .estimator import Slate as Slate
from .estimator import load as load
from .estimator import make_estimator as make_estimator
from .evaluation.evaluate import evaluate as evaluate
from .metrics import Measure as Measure
from .reranker import Reranker as Reranker
from .simulation.click_models import click_model as click_model
from .simulation.click_models import simulate_clicks as simulate_clicks
from .simulation.synthetic import make_synthetic_lists as make_synthetic_lists

__version__: str
