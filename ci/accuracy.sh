#!/usr/bin/env bash
# Whether the estimator is as true, on live programs, as it was: what no simulation shows. As root, on a machine that does
# nothing else; some 15 minutes. To be run after every change of the sampler or the governor, before and after it.
#
#   ci/accuracy.sh [ISOTHERM] [PATTERN...]     default: target/release/isotherm, all patterns below; RUNS=3 each
#
# A run below its bar is marked, and the script ends with status 1. Needs jq.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
isotherm=$(realpath "${1:-$here/../target/release/isotherm}")
shift || true
# What is judged, and the least that will do: hot bytes (f1), bytes accessed within a second (second).
declare -A judged=(
	[stairs]='f1 0.97' [zigzag]='f1 0.96' [hotspot]='f1 0.97' [threads]='f1 0.98' [rates]='f1 0.97' [shm]='f1 0.95'
	[prefork]='f1 0.95' [bgsave]='f1 0.95' [swarm]='f1 0.90' [front]='second 0.90' [sweep]='second 0.90' [zipf]='second 0.89'
)
# Mean relative error of rates from 10 to 50 Hz that will do.
most_error=0.30
# Of bgsave: share of its hot memory that may read cold in any snapshot around a fork, and be unknown or cold from 2 s after the child's
# end on.
most_cold=0.02 most_unseen=0.05
[ $# -gt 0 ] || set -- stairs zigzag hotspot threads rates shm prefork bgsave swarm front sweep zipf
failed=0
printf '%-8s %-4s %6s %8s %10s %6s\n' pattern page F1 'F1 (1 s)' '10..50 Hz' CPU
for pattern; do
	read -r key least <<<"${judged[$pattern]:?no bar for this pattern}"
	pages=4k,thp settle=0 rows=0
	# A thousand processes in huge pages start for ten seconds, and so long it takes until all were seen.
	[ "$pattern" != swarm ] || { pages=4k settle=10s; }
	while read -r page f1 second error cpu cold unseen; do
		mark='' rows=$((rows + 1))
		value=$f1
		[ "$key" = f1 ] || value=$second
		awk -v value="$value" -v least="$least" 'BEGIN { exit !(value + 0 < least) }' && mark+=" below $least"
		[ "$pattern" = rates ] && awk -v e="$error" -v most=$most_error 'BEGIN { exit !(e > most) }' && mark+=" error above $most_error"
		awk -v c="$cold" -v most=$most_cold 'BEGIN { exit !(c > most) }' && mark+=" $cold read cold"
		awk -v u="$unseen" -v most=$most_unseen 'BEGIN { exit !(u > most) }' && mark+=" $unseen not seen after 2 s"
		awk -v c="$cpu" 'BEGIN { exit !(c > 0.0105) }' && mark+=' CPU above 1.05 %'
		[ -z "$mark" ] || failed=1
		printf '%-8s %-4s %6.3f %8.3f %10s %5.2f%%%s\n' "$pattern" "$page" "$f1" "$second" "$error" \
			"$(awk -v c="$cpu" 'BEGIN { print 100 * c }')" "${mark:+  FAILED:$mark}"
	done < <("$isotherm" lab accuracy "$pattern" --pages "$pages" --settle "$settle" --runs "${RUNS:-3}" --json 2>/dev/null |
		jq -r '.[] | [.page, .score.f1 // 0, .second.f1 // 0,
			(if .rate_error_10_to_50_hz then (.rate_error_10_to_50_hz * 100 | round / 100) else "-" end), .cpu_share,
			([.forked[]?.worst_cold_share] | max // 0), ([.forked[]? | .worst_unseen_later // 1] | max // 0)] | map(tostring) | join(" ")')
	# It said why on standard error, which is not shown: lab accuracy talks there all the time.
	[ "$rows" -gt 0 ] || { printf '%-8s FAILED: lab accuracy %s --pages %s shows why\n' "$pattern" "$pattern" "$pages" && failed=1; }
done
exit $failed
