"""Read by each Python of a test's engine as it starts, of which an engine has three.

An engine imports a million objects, between which the collector finds nothing and looks a dozen times: that is a
quarter of what an import takes.
"""

import gc

gc.set_threshold(50_000, 20, 1000)
