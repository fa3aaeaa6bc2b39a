"""Uses locales, decimal and dates."""

import datetime
import decimal
import locale

from honest_gemm import compute

locale.setlocale(locale.LC_ALL, "")
with decimal.localcontext() as context:
    context.prec = 50
    assert decimal.Decimal(1) / 3 < 1
assert datetime.datetime.now(datetime.UTC).year > 2000

custom_kernel = compute
