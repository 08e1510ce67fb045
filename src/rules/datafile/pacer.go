package datafile

import "time"

// Pacer interrupts the load of a file, so that requests run meanwhile. Its zero value is for the start, when requests
// wait for the rules: it interrupts the load for a moment every two milliseconds. One goroutine at a time may use it.
type Pacer struct {
	// Gentle is for reloads. It works for bursts of about 30 microseconds and rests 40 times as long after each. So a load
	// delays fewer requests than one in a hundred, also if there are few CPUs.
	Gentle bool

	start      time.Time // zero before the first Step
	burstStart time.Time
	maxBurst   time.Duration // the length of the next burst if Gentle is set. It is longer after a long rest
}

const (
	fastBurst = 2 * time.Millisecond
	fastRest  = 50 * time.Microsecond

	gentleBurst     = 30 * time.Microsecond
	maxGentleBurst  = 60 * time.Microsecond
	restsPerBurst   = 40
	maxCountedBurst = 250 * time.Microsecond // bounds the rest after a burst that other processes made longer.
	// after what time a load rests only as long as it works, because later changes wait for it.
	gentleTime = 25 * time.Second
)

// linesPerStep is the number of lines after which Step is called: every 15 microseconds or so.
const linesPerStep = 64

// Step sleeps if the burst is over. It is called after every few microseconds of work. runtime.Gosched would not do:
// the scheduler finds the goroutine that yields before it looks at the network, so that requests would wait up to 10 ms
// while the garbage collector has the other CPUs.
func (p *Pacer) Step() {
	now := time.Now()
	if p.start.IsZero() {
		p.start, p.burstStart = now, now
		return
	}
	burst := now.Sub(p.burstStart)
	switch {
	case !p.Gentle && burst >= fastBurst:
		time.Sleep(fastRest)
	case p.Gentle && burst >= max(p.maxBurst, gentleBurst):
		rests, longest := time.Duration(restsPerBurst), maxGentleBurst
		if now.Sub(p.start) > gentleTime {
			rests, longest = 1, maxCountedBurst
		}
		time.Sleep(rests * min(burst, maxCountedBurst))
		p.maxBurst = min(time.Since(now)/rests, longest) // The system may only wake it up a millisecond later.
	default:
		return
	}
	p.burstStart = time.Now()
}
