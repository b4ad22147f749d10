"""What holds for every test, and for every process that one starts.

Tests run one per core, in processes of their own. Were each of them to take a thread per core for
its matrices too, as torch does unasked, the threads would wait for one another, spinning: the
same tests were seen to take five times as long on two cores. So each process computes on one.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
