package mode

import "time"

// What a change costs whoever works with the host, so that alternatives can be put in order. The numbers are made up, and only
// their order is meant; the finest grain is how long it takes to have the service back, in seconds of this host's own history, so
// that of two services alike the one that is back sooner goes. An alternative costs what its changes cost together.
//
//	keep            0      nothing changes
//	sleep       1 000      it is back in seconds, and nothing is loaded from the disk; its requests in flight end
//	utilisation 2 000      fewer requests at a time fit; takes a human and a restart; 50 more for each 0.05
//	context     4 000      long requests are refused; takes a human and a restart; 500 more for each further halving, up to seven
//	GPU         8 000      nobody notices but who looks; takes a human, and is wrong where the GPUs are told apart on purpose
//	sleeper    12 000      what sleeps is stopped: nobody's requests end, but it is no longer back in seconds
//	stop       16 000      it is gone until it was loaded again
//	split      64 000      the engine runs in another way, and is as quick as the GPUs' link
//
// So up to a dozen sleepers are preferred to one service that is stopped. Seconds count up to a quarter of an hour, which keeps
// every kind below the next.
const (
	costSleep       = 1_000
	costUtilisation = 2_000
	costContext     = 4_000
	costGPU         = 8_000
	costSleeper     = 12_000
	costStop        = 16_000
	costSplit       = 64_000

	costEachStep    = 50
	costEachHalving = 500
	maxHalvings     = 7
	maxCostSeconds  = 900
)

// grain is how long something takes to be back, as a cost.
func grain(back time.Duration) int64 { return min(int64(seconds(back)), maxCostSeconds) }

// halving is what the n-th halving of a context costs more than the first.
func halving(n int64) int64 { return min(n-1, maxHalvings) * costEachHalving }
