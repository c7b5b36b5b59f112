"""What a row's score <a, x> counts for in a sum of rows; see `rows.add_mean`."""

LINEAR, LOGISTIC, PRODUCT = 0, 1, 2
