package loading

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules"
)

func TestProf(t *testing.T) {
	var files []RuleFile
	for i := range 10000 {
		var b strings.Builder
		fmt.Fprintf(&b, "domain: tenant-%05d\ndescriptors:\n", i)
		for j := range 40 {
			fmt.Fprintf(&b, "  - key: path\n    value: /v1/items/%d\n    rate_limit:\n      unit: minute\n      requests_per_unit: %d\n", j, 100+j)
		}
		files = append(files, RuleFile{Name: fmt.Sprintf("tenant-%05d.yaml", i), Data: []byte(b.String())})
	}
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	f, _ := os.Create("/tmp/w/fleet-tmp/cpu.prof")
	pprof.StartCPUProfile(f)
	start := time.Now()
	set, _, err := Load(files, rules.Options{})
	pprof.StopCPUProfile()
	fmt.Println(time.Since(start), err)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	fmt.Println("live MB", (m1.HeapAlloc-m0.HeapAlloc)>>20, "alloc MB", (m1.TotalAlloc-m0.TotalAlloc)>>20)
	h, _ := os.Create("/tmp/w/fleet-tmp/heap.prof")
	pprof.WriteHeapProfile(h)
	runtime.KeepAlive(set)
	runtime.KeepAlive(files)
}
