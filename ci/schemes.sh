#!/usr/bin/env bash
# Measures what schemes do to live processes. By hand, as root, on a machine with a CPU to spare and nothing else to do. Swap is
# made in zram, cgroups are made, and both are removed, also when something fails or is interrupted.
#
#   ci/schemes.sh [OPTION]... [WHAT]...      WHAT: prcl quotas third predict applied psi soak kills; default: all
#
#   prcl      the seeds' prcl on a program that builds 1 GiB and then uses a tenth: resident set, run time
#   quotas    bytes and ms in each window of a quota, on a busy program, while a CPU is kept busy
#   third     hot, warm and cold thirds, and a quota for one: how much of what goes is the cold one
#   predict   what `scheme try` says of a recording, and what `scheme apply` does: all built-in patterns. No run is like the one
#             before: each recording is of a run by itself, and means are compared, of as many recordings and runs under schemes
#   applied   what is said to have been applied beside what smaps says
#   psi       a goal of memory pressure in a cgroup, on a pattern that changes
#   soak      `reclaim --all` in a pid namespace where processes come and go every second
#   kills     kill -9 at random moments
#
#   --isotherm FILE    default target/release/isotherm
#   --pairs N          pairs of runs of prcl, default 5
#   --minutes N        of soak, default 60
#   --kills N          default 100
#   --scale-time F     length of the patterns' phases in predict, default 1
#   --patterns LIST    patterns of predict, separated by commas; default all
#   --runs N           of each pattern in predict, recorded and under schemes, default 3
#   --tuner NAME       of psi, default pi
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

isotherm=$root/target/release/isotherm pairs=5 minutes=60 kills=100 scale=1 patterns='' runs=3 tuner=pi
while [ $# -gt 0 ]; do
	case $1 in
	--isotherm | --pairs | --minutes | --kills | --patterns | --runs | --tuner)
		[ $# -ge 2 ] || die "$1 needs a value"
		printf -v "${1#--}" '%s' "$2"
		shift 2
		;;
	--scale-time)
		[ $# -ge 2 ] || die "$1 needs a value"
		scale=$2
		shift 2
		;;
	-h | --help)
		sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
		exit
		;;
	-*) die "unknown option $1; see ci/schemes.sh --help" ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || set -- prcl quotas third predict applied psi soak kills
[ "$(id -u)" = 0 ] || die "run it as root"
isotherm=$(realpath "$isotherm")
[ -x "$isotherm" ] || die "no $isotherm; cargo build --release"
need cc gcc
need mkswap util-linux

scratch=$(mktemp -d)
zram='' group='' children=()
clean() {
	local pid
	for pid in "${children[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
	children=()
	wait 2>/dev/null || true
	[ -z "$group" ] || rmdir "$group" 2>/dev/null || true
	if [ -n "$zram" ]; then
		swapoff "/dev/zram$zram" 2>/dev/null || true
		echo "$zram" >/sys/class/zram-control/hot_remove
		zram=''
	fi
}
trap 'clean; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd "$scratch"
cc -O2 -static -o kinds "$root/ci/guest-tests/kinds.c"

swap() {
	zram=$(cat /sys/class/zram-control/hot_add)
	echo "$1" >"/sys/block/zram$zram/disksize"
	mkswap "/dev/zram$zram" >/dev/null
	swapon "/dev/zram$zram"
}
# kb PID KEY: kilobytes of all mappings.
kb() { awk -v key="$2:" '$1 == key { n += $2 } END { print n + 0 }' "/proc/$1/smaps_rollup"; }
# workload FILE: runs a pattern; its pid is in $workload, its areas in truth.
workload() {
	rm -f truth
	"$isotherm" workload "$1" --truth truth &
	workload=$!
	children+=("$workload")
	until grep -q '"ready"' truth 2>/dev/null; do sleep 0.1; done
}
finish() {
	kill -9 "$workload" 2>/dev/null || true
	wait "$workload" 2>/dev/null || true
	children=()
}
# swapped AREA: kilobytes of it in swap.
swapped() {
	local from to
	from=$(sed -n "s/.*\"kind\":\"area\".*\"name\":\"$1\",\"start\":\([0-9]*\),.*/\1/p" truth)
	to=$(sed -n "s/.*\"kind\":\"area\".*\"name\":\"$1\",.*\"end\":\([0-9]*\),.*/\1/p" truth)
	awk -v from="$(printf %x "$from")" -v to="$(printf %x "$to")" '
		$1 ~ /^[0-9a-f]+-[0-9a-f]+$/ { split($1, range, "-"); inside = range[1] < to && from < range[2] }
		inside && $1 == "Swap:" { n += $2 }
		END { print n + 0 }' "/proc/$workload/smaps"
}
# member NAME: the sum over the lines of the log.
member() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" log | awk '{ n += $1 } END { printf "%.0f\n", n }'; }
# windows BYTES MS: most in a window, and how many were above either.
windows() {
	sed -n 's/.*"latency_us":\([0-9]*\).*"tried":\([0-9]*\).*"waited_us":\([0-9]*\).*"window_ns":\([0-9]*\).*/\4 \2 \1 \3/p' log | awk -v bytes="$1" -v ms="$2" '
		# What others had the CPU for is no cost of acting.
		{ tried[$1] += $2; took[$1] += $3 - $4 }
		END {
			for (window in tried) {
				n++
				if (tried[window] > most) most = tried[window]
				if (took[window] > longest) longest = took[window]
				over += tried[window] > bytes; late += took[window] > ms * 1000
			}
			printf "%d windows; most %.1f of %.1f MiB, %d above; longest %.1f of %d ms, %d above\n",
				n, most / 1048576, bytes / 1048576, over, longest / 1000, ms, late
		}'
}

prcl() {
	"$isotherm" lab schemes --swap 2G --pairs "$pairs" -o "$root/target/schemes-saved.png"
	say "bar: saved in the last phase >= 85 %, slowdown <= 2 %; picture: target/schemes-saved.png"
}

areas() {
	printf 'name = "thirds"\nsummary = "hot, warm, cold"\n'
	printf 'area = [{ name = "hot", size = "%s" }, { name = "warm", size = "%s" }, { name = "cold", size = "%s" }]\n' "$1" "$1" "$1"
	printf '[[phase]]\nname = "all"\nduration = "1h"\naccess = [{ area = "hot", rate = "100Hz" }, { area = "warm", rate = "10Hz" }]\n'
}

quotas() {
	areas 256M >thirds.toml
	swap 1G
	workload thirds.toml
	printf '[[scheme]]\nname = "slow"\naction = "pageout"\nmin_age = "1s"\nquota.size = "8M/s"\nquota.time = "50ms/s"\n' >scheme.toml
	# Something to be preempted by.
	(while :; do :; done) &
	children+=($!)
	rm -f log
	"$isotherm" scheme apply scheme.toml --pid "$workload" --duration 60s --quiet --log log >/dev/null
	windows $((8 << 20)) 50
	clean
}

third() {
	areas 64M >thirds.toml
	printf '[[scheme]]\nname = "third"\naction = "pageout"\nmin_age = "2s"\nquota.size = "64M"\nquota.reset_interval = "1h"\n' >scheme.toml
	printf 'quota.weights = { access = 1, age = 1 }\nfilters = [{ reject = "not anon" }]\n' >>scheme.toml
	swap 1G
	workload thirds.toml
	rm -f log
	"$isotherm" scheme apply scheme.toml --pid "$workload" --duration 30s --quiet --log log >/dev/null
	awk -v cold="$(swapped cold)" -v warm="$(swapped warm)" -v hot="$(swapped hot)" -v all="$(kb "$workload" Swap)" 'BEGIN {
		printf "%d kB paged out: cold %d (%.1f %%), warm %d, hot %d, other %d\n", all, cold, cold * 100 / all, warm, hot, all - cold - warm - hot }'
	clean
}

predict() {
	[ -n "$patterns" ] || patterns=$("$isotherm" workload --list | sed -n 's/^\([a-z]\{1,\}\) .*/\1/p' | paste -sd,)
	# One at a time, so that what was found is seen if one fails.
	for pattern in ${patterns//,/ }; do
		"$isotherm" lab schemes "$pattern" --swap 2G --pairs "$runs" --predict --scheme prcl:min_age=1s --scale-time "$scale" |
			grep -E '^ *(workload|paged out|came back|least|predicted)' || say "$pattern: failed"
	done
	say "bar: the mean of the predictions within 20 % of the mean of the runs; of what comes back also within 1 % of what goes"
}

applied() {
	areas 128M >thirds.toml
	printf '[[scheme]]\nname = "idle"\naction = "pageout"\nmax_access = "1%%"\nmin_age = "1s"\nquota.size = "256M/s"\n' >scheme.toml
	swap 1G
	workload thirds.toml
	local before after
	before=$(kb "$workload" Rss)
	rm -f log
	"$isotherm" scheme apply scheme.toml --pid "$workload" --duration 15s --quiet --log log >/dev/null
	after=$(kb "$workload" Rss)
	awk -v applied="$(member applied)" -v gone=$((before - after)) 'BEGIN {
		printf "applied %.1f MiB, resident set fell by %.1f MiB: %+.2f %%\n", applied / 1048576, gone / 1024, (applied / 1024 / gone - 1) * 100 }'
	clean
}

# Rates of the eight areas, Hz: in turn up and down the list. What is slow costs little stall when it is out, what is fast much.
rates=(0 0.05 0.1 0.2 0.5 2 10 50)

psi() {
	local unified=/sys/fs/cgroup start now=0
	[ -e $unified/cgroup.controllers ] || unified=/sys/fs/cgroup/unified
	group=$unified/isotherm-psi-$$
	mkdir "$group"
	swap 1G
	{
		printf 'name = "turns"\nsummary = "eight areas at eight rates, which change places"\n'
		printf '[[area]]\nname = "area{i}"\ncount = 8\nsize = "48M"\n'
		for ((phase = 0; phase < 4; phase++)); do
			printf '[[phase]]\nname = "p%d"\nduration = "40s"\naccess = [\n' $phase
			for ((i = 1; i < 8; i++)); do
				printf '{ area = "area%d", rate = "%sHz", kind = "random" },\n' $((phase % 2 ? 7 - i : i)) "${rates[i]}"
			done
			printf ']\n'
		done
	} >turns.toml
	workload turns.toml
	echo "$workload" >"$group/cgroup.procs"
	printf '[[scheme]]\nname = "goal"\naction = "pageout"\nmin_age = "500ms"\nquota.size = "128M/500ms"\nquota.weights = { access = 1, age = 1 }\n' >scheme.toml
	printf 'quota.tuner = "%s"\n' "$tuner" >>scheme.toml
	printf 'quota.goals = [{ metric = "some_mem_psi_us", target = "2500us", cgroup = "%s" }]\n' "$group" >>scheme.toml
	# At 1 % of a CPU, the default, rates of what changed are known far later on a busy machine: 54 % instead of 78 % were reclaimed.
	"$isotherm" scheme apply scheme.toml --pid "$workload" --overhead 5% --duration 150s --stats-every 30s >apply.txt &
	children+=($!)
	: >seconds
	start=${EPOCHREALTIME//[!0-9]/}
	# By the clock: a second of sleep is longer on a busy machine.
	while [ $now -lt 145000000 ] && [ -e "/proc/$workload/exe" ]; do
		sleep 1
		now=$((${EPOCHREALTIME//[!0-9]/} - start))
		printf '%s %s %s %s\n' $now "$(sed -n 's/^some .*total=//p' "$group/memory.pressure")" "$(kb "$workload" Swap)" \
			"$(sed -n 's/^pswpin //p' /proc/vmstat)" >>seconds
	done
	# The first thirty seconds are the tuner's. An oracle knows the rates, pages out what is slowest the moment it is slow, and again
	# whenever it came back, as much as the stall aimed at pays for at what a page cost here. It pays for the change of places, too:
	# what was out and is faster then comes back, all of it once a phase.
	awk -v list="${rates[*]}" '
		{ now = $1 / 1e6 }
		now > 30 && from { block = int(now / 10); us[block] += $2 - total; lasted[block] += now - at; out += $3 * (now - at) }
		now > 30 && !from { from = now; stalled = $2; swapped_in = $4 }
		{ at = now; total = $2; pages = $4 }
		END {
			for (block in us) { blocks++; off += us[block] / lasted[block] < 3500 || us[block] / lasted[block] > 6500 }
			out /= (at - from) * 1024; stalled = total - stalled
			printf "stall %.2f ms a second, aimed at 5 (bar: 3.5 to 6.5); %d of %d stretches of ten seconds outside\n",
				stalled / (at - from) / 1000, off, blocks
			cost = stalled / (pages - swapped_in + 1); left = 5000 * 40 / cost; split(list, rate, " ")
			for (i = 1; i <= 8; i++) {
				takes = (rate[i] * 40 + (rate[9 - i] > rate[i])) * 12288; share = takes <= left ? 1 : left / takes
				oracle += 48 * share; left -= takes * share
			}
			printf "a page read back stalls for %.1f us; out %.0f MiB, of %.0f that an oracle would have: %.0f %% (bar: 80)\n", cost, out, oracle, out * 100 / oracle
		}' seconds
	tail -n 3 apply.txt
	clean
}

soak() {
	swap 2G
	export -f soaking
	unshare --pid --fork --mount-proc --kill-child bash -c "soaking '$isotherm' $minutes"
	clean
}

# soaking ISOTHERM MINUTES: in a pid namespace of its own, whose processes are all there are.
soaking() {
	local end=$((SECONDS + $2 * 60)) pid at=0 started=0
	(./kinds 100000 small locked >/dev/null; echo "the long one: $?" >long) &
	"$1" scheme apply 'reclaim:min_age=3s,wmarks_high=100%,wmarks_mid=100%,wmarks_low=0' --all --quiet --log soak.log >soak.out 2>soak.err &
	pid=$!
	: >seconds
	: >bad
	while [ $SECONDS -lt $end ]; do
		(./kinds 8 small huge >/dev/null || echo "$?" >>bad) &
		started=$((started + 1))
		sleep 1
		at=$((at + 1))
		[ $((at % 10)) != 0 ] || printf '%s %s %s %s %s\n' $SECONDS "$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' /proc/$pid/status)" \
			"$(find /proc/$pid/fd 2>/dev/null | wc -l)" "$(find /proc/$pid/task -maxdepth 1 | wc -l)" "$(awk '{ print $14 + $15 }' /proc/$pid/stat)" >>seconds
	done
	kill -INT $pid
	wait $pid || true
	cat soak.err
	cat soak.out
	# Growth from the end of the first tenth on.
	awk -v hz="$(getconf CLK_TCK)" -v acting="$(sed -n 's/.*acting \([0-9.]* [a-z]*\) of CPU time.*/\1/p' soak.out | tail -n 1)" '
		{ time[NR] = $1; rss[NR] = $2; fds[NR] = $3; threads[NR] = $4; cpu[NR] = $5 }
		END { a = int(NR / 10) + 1
			printf "from second %d to %d: memory %d to %d kB, descriptors %d to %d, threads %d to %d; CPU in all %.2f %%, of which acting %.2f\n",
				time[a], time[NR], rss[a], rss[NR], fds[a], fds[NR], threads[a], threads[NR],
				cpu[NR] / hz / time[NR] * 100, seconds(acting) / time[NR] * 100 }
		function seconds(text, word) { split(text, word, " "); return word[1] / (word[2] == "s" ? 1 : word[2] == "ms" ? 1e3 : 1e6) }' seconds
	# shellcheck disable=SC2046  # all of them
	kill -TERM $(pgrep -x kinds) 2>/dev/null || true
	wait || true
	printf '%s programs came and went; with wrong contents: %s; %s\n' $started "$(wc -l <bad)" "$(cat long)"
}

kills() {
	(cd "$root" && ISOTHERM_KILLS=$kills cargo test --locked -q -p isotherm --test scheme_swap killed -- --nocapture)
}

for what in "$@"; do
	case $what in
	prcl | quotas | third | predict | applied | psi | soak | kills)
		say "== $what"
		"$what"
		;;
	*) die "no such measurement: $what; see ci/schemes.sh --help" ;;
	esac
done
