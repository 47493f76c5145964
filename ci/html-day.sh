#!/usr/bin/env bash
# Measures the page of a day: makes a recording of 50 million regions, turns it into a page, opens that in headless Chromium,
# zooms, and prints sizes and times. It takes a few minutes and a gigabyte below $TMPDIR. The bars: at most 5 MB, open within
# 2 s, a zoom within 2 s.
#
#   ci/html-day.sh
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo test --release -p isotherm --test html -- --ignored --exact --nocapture a_day_of_fifty_million_regions
