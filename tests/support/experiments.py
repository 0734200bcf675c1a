"""An experiment as a daemon tells of it."""

from controlplane.core.experiment import Estimate
from controlplane.daemon.experiment import ExperimentStatus

MEASURED = ExperimentStatus(
    preset="penstock",
    standing="measures",
    is_stock=False,
    began_ns=0,
    slice_ends_ns=1,
    ended_ns=0,
    since_ns=0,
    blocks=9,
    left_out=1,
    programs=90,
    censored=5,
    changes=(Estimate(name="completion", value=0.3, low=0.2, high=0.4, is_bounded=True, blocks=9),),
)
