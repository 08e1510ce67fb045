package bench

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sample is a run of 1000 calls at 1, 2, ... 1000 ms, of which 700 are OK, 250
// over, 1 unknown and the rest failed.
func sample() *Tally {
	t := newTally()
	for i := range 1000 {
		answer, err := ok, error(nil)
		switch {
		case i >= 960:
			err = status.Error(codes.DeadlineExceeded, "too late")
		case i >= 951:
			err = status.Error(99, "odd")
		case i == 950:
			answer = 7
		case i >= 700:
			answer = over
		}
		t.Add(answer, err, time.Duration(i+1)*time.Millisecond, time.Duration(i)*10*time.Microsecond)
	}
	return t
}

const (
	goldenText = `localhost:8081: zipf of 5000 keys, 2 x 32 calls in flight, 100 calls due a second, interrupted

  requests   seconds  answers/s
      1000     10.00       95.1

                  mean       p50       p90       p99     p99.9       max
  latency µs  500504.9    500223    900095    990207    999423   1000447

      late  behind µs    unsent
       899       9990         3

        OK  OVER_LIMIT   UNKNOWN  error DEADLINE_EXCEEDED  error UNKNOWN
       700         250         1                       40              9

first error: 99: odd

        cpu   seconds  µs/request
         10      0.02       20.00
    service      1.50     1500.00
  generator      0.25      250.12
`
	goldenJSON = `{"address":"localhost:8081","workload":"zipf","keys":5000,"seed":7,"connections":2,"in_flight":32,"interrupted":true,` +
		`"requests":1000,"seconds":10,"rate":95.1,` +
		`"latency_us":{"mean":500504.86,"p50":500223,"p90":900095,"p99":990207,"p999":999423,"max":1000447},` +
		`"answers":{"OK":700,"OVER_LIMIT":250,"UNKNOWN":1},"errors":{"DEADLINE_EXCEEDED":40,"UNKNOWN":9},"first_error":"99: odd",` +
		`"open_loop":{"rate":100,"late":899,"behind_us":9990,"unsent":3},` +
		`"cpu":{"10":{"pid":10,"seconds":0.02,"us_per_request":20},"service":{"pid":12,"seconds":1.5,"us_per_request":1500}},` +
		`"generator":{"pid":1,"seconds":0.25012,"us_per_request":250.12}}`
)

func TestResult(t *testing.T) {
	cfg := Config{
		Addr: "localhost:8081", Seed: 7, Connections: 2, InFlight: 32, Rate: 100,
		Processes: []Process{{"service", 12}, {"10", 10}, {"gone", 11}},
	}
	total := newTally()
	total.merge(sample())
	r := newResult(&cfg, &Load{name: "zipf", keys: 5000}, total, 10*time.Second)
	r.Interrupted = true
	r.OpenLoop.Unsent = 3
	ms := time.Millisecond
	r.setCPU(cfg.Processes, []time.Duration{500 * ms, 0, 70 * ms, ms},
		[]time.Duration{2000 * ms, 20 * ms, -1, 251*ms + 120*time.Microsecond})
	if r.Generator == nil || r.Generator.PID == 0 {
		t.Fatal("nothing of the generator")
	}
	r.Generator.PID = 1
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != goldenText {
		t.Errorf("got\n%s\nwant\n%s", got, goldenText)
	}
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != goldenJSON {
		t.Errorf("got\n%s\nwant\n%s", got, goldenJSON)
	}
}

func TestResultOfNothing(t *testing.T) {
	r := newResult(&Config{Addr: "a:1", Connections: 1, InFlight: 1}, &Load{name: "hot", keys: 1}, newTally(), 0)
	r.setCPU(nil, []time.Duration{0}, []time.Duration{time.Second})
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"address":"a:1","workload":"hot","keys":1,"seed":0,"connections":1,"in_flight":1,"interrupted":false,` +
		`"requests":0,"seconds":0,"rate":0,"latency_us":{"mean":0,"p50":0,"p90":0,"p99":0,"p999":0,"max":0},` +
		`"answers":{"OK":0,"OVER_LIMIT":0,"UNKNOWN":0},"errors":{},"cpu":{}}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no paper") }

func TestResultNotWritten(t *testing.T) {
	r := newResult(&Config{}, &Load{}, newTally(), 0)
	if err := r.Write(failing{}); err == nil {
		t.Error("the error of the writer is lost")
	}
}

// Longer than the histogram goes is its end, not lost.
func TestLongest(t *testing.T) {
	tl := newTally()
	tl.Add(ok, nil, 3*time.Hour, 0)
	if got := tl.latency.Max(); !about(got, maxLatency) {
		t.Errorf("%d µs", got)
	}
}
