import sys

from areal_like.models.smollm2.prepare import main

sys.exit(main())
