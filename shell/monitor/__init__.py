"""``walship monitor``: a cluster's status as a web page, as JSON and as metrics, on this host.

``server`` answers requests, ``sampling`` keeps the newest status and the lags of the last hour, ``page`` draws them.
The page has the very sections and words of ``walship status``; nothing can be changed there.
"""
