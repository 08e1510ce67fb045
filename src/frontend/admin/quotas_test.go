package admin

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/operator"
	"ratelimit/src/quota"
	"ratelimit/testbed/browser"
)

// exampleQuotas returns two buckets, one of which is short. bucket is its text.
func exampleQuotas(bucket string) operator.Quotas {
	return operator.Quotas{
		Total: quota.Totals{
			Proxies: 3, Buckets: 2, DemandPerSecond: 320.5, Units: 110, LeftUnits: 20,
			ShortBuckets: 1, Unfairness: 0.25,
		},
		Buckets: []quota.BucketState{
			{
				Domain: "quotas", Bucket: bucket, Rule: "quotas.env.name", Limits: []string{"100 per second"},
				Action: quota.AssignUnits.String(), DemandPerSecond: 300.5, Units: 100,
				ShortSeconds: 72, Unfairness: 0.25, LeftUnits: 20, LeftSeconds: 8, ProxyCount: 3, OtherProxyCount: 2,
				Proxies: []quota.ProxyState{
					{
						Peer: "10.0.0.7:41022", DemandPerSecond: 200, AskedPerSecond: 200, AdmittedPerSecond: 60, IsShort: true,
						Action: quota.AssignUnits.String(), Units: 60, InUse: 30, AssignedSeconds: 0.5, ExpiresInSeconds: 10.5,
						ReportedSeconds: 2,
					},
					{
						Peer: "10.0.0.8:33000", DemandPerSecond: 100.5, AskedPerSecond: 100.5, AdmittedPerSecond: 45, IsSilent: true,
						Action: quota.DenyAll.String(), AssignedSeconds: 30, ReportedSeconds: 31,
					},
				},
			},
			{
				Domain: "quotas", Bucket: "env=test,name=web", Action: quota.AllowAll.String(), DemandPerSecond: 20, ProxyCount: 1,
				Proxies: []quota.ProxyState{{Peer: "10.0.0.7:41022", ReportedSeconds: 1}},
			},
		},
	}
}

func TestQuotasAPI(t *testing.T) {
	t.Parallel()
	f := newFakeFigures()
	f.quotas = exampleQuotas("env=prod,name=web")
	f.quotas.Buckets[0].Proxies = f.quotas.Buckets[0].Proxies[:1]
	const (
		total = `{"total":{"proxies":3,"buckets":2,"demand_per_second":320.5,"units":110,"left_units":20,"short_buckets":1,"unfairness":0.25},"buckets":[`
		prod  = `{"domain":"quotas","bucket":"env=prod,name=web","rule":"quotas.env.name","limits":["100 per second"],"action":"units","demand_per_second":300.5,"units":100,` +
			`"short_seconds":72,"unfairness":0.25,"left_units":20,"left_seconds":8,"proxy_count":3,"other_proxy_count":2,"proxies":[`
		proxy = `{"peer":"10.0.0.7:41022","demand_per_second":200,"asked_per_second":200,"admitted_per_second":60,"short":true,"silent":false,"action":"units","units":60,"in_use":30,` +
			`"assigned_seconds":0.5,"expires_in_seconds":10.5,"reported_seconds":2}`
	)
	for _, tt := range []struct {
		query string
		code  int
		want  string
	}{
		{"?limit=1", 200, total + prod + proxy + `]}],"matching_buckets":2}`},
		{"?limit=1&proxies=0", 200, total + prod + `]}],"matching_buckets":2}`},
		{"?domain=quotas&bucket=env=prod,name=web", 200, total + prod + proxy + `]}],"matching_buckets":1}`},
		{"?domain=other", 200, total + `],"matching_buckets":0}`},
		{"?domain=quotas&bucket=a=b", 404, `no proxy of this replica has the bucket "a=b" of domain "quotas"`},
		{"?bucket=a=b", 400, `bucket "a=b" without its domain: add domain=`},
		{
			"?domain=quotas&bucket=a=b,,c", 400,
			`bucket=a=b,,c: write key=value, separated by commas; "" is not that`,
		},
		{
			"?domain=quotas&bucket=%3Db", 400,
			`bucket==b: write key=value, separated by commas; "=b" is not that`,
		},
		{"?limit=1000&proxies=11", 400, `limit=1000 and proxies=11 are together too much: their product is at most 10000`},
		{"?proxies=1001", 400, `proxies="1001" is not allowed; it is a whole number from 0 to 1000`},
	} {
		w := get(pagesWith(f.source()), "/api/quotas"+tt.query)
		if got := strings.TrimSpace(w.Body.String()); w.Code != tt.code || got != tt.want {
			t.Errorf("%s: got %d\n%s\nwant %d\n%s", tt.query, w.Code, got, tt.code, tt.want)
		}
	}
	totals := &quota.Totals{Proxies: 1, Buckets: 2, ShortBuckets: 1, Units: 7, LeftUnits: 3}
	if got := operator.QuotaTotalsText(totals); got != "1 proxy, 2 buckets, 1 of them short, 0 units a second asked for, 7 assigned, 3 "+
		"left by proxies that are gone" {
		t.Errorf("for people: %s", got)
	}
}

// The section of quotas is there while proxies have some. It shows the proxies of a bucket if asked to.
func testPageOfQuotas(t *testing.T, chromium *browser.Browser) {
	port := newOperatorPort(t)
	p := chromium.Open(t, port.url(), 1280)
	p.Await(isConnected + " && document.getElementById('quotas').hidden && document.getElementById('quotas-link').hidden")
	const hostile = `env=<img src=x onerror=alert(1)>`
	set := func(q operator.Quotas) {
		port.figures.set(func(*operator.State, *operator.Rates) { port.figures.quotas = q })
	}
	set(exampleQuotas(hostile))
	p.Await(fmt.Sprintf(rowsOf, "quotas") + " === 2")
	text := func(element, want string) {
		t.Helper()
		if got := p.Text(element + ".innerText.replaceAll(/\\s+/g, ' ').trim()"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", element, got, want)
		}
	}
	text("document.getElementById('quotas-totals')",
		"Proxies 3 Buckets 2 Demand 321/s Assigned 110 units Short 1 bucket Left by dead proxies 20 units")
	p.Do("document.querySelector('#quotas-table button').focus()")
	p.Press("\r")
	p.Await(fmt.Sprintf(rowsOf, "quotas") + " === 5")
	for i, want := range []string{
		hostile + " quotas: env.name 100 per second 301 100 3 + 2 short for 1 min 12 s; one proxy has 25 % less than its " +
			"share; up to 20 units left by dead proxies, for 8 s Explain",
		"10.0.0.7:41022 60/s of 200/s admitted 200 60, 30 in use refuses requests, assigned 0.5 s ago, expires in 11 s, " +
			"reported 2 s ago",
		"10.0.0.8:33000 45/s of 101/s admitted 101 none left silent, assigned 30 s ago, expired, reported 31 s ago",
		"and 1 more, which ask for less; /api/quotas lists them",
		"env=test,name=web quotas: no rule no limit 20 all pass 1 enough for all Explain",
	} {
		text(fmt.Sprintf("document.querySelectorAll('#quotas-table tbody tr')[%d]", i), want)
	}
	p.Click("#quotas-table tbody tr:last-child button.small")
	p.Await("document.getElementById('explain-domain').value === 'quotas' && " +
		"document.getElementById('explain-descriptors').value === 'env=test,name=web'")
	if got := p.Text("document.querySelectorAll('main img').length"); got != "0" {
		t.Errorf("%s elements come from texts of proxies", got)
	}
	set(operator.Quotas{})
	p.Await("document.getElementById('quotas').hidden")
	if problems := p.Problems("status of 400"); problems != nil {
		t.Errorf("%q", problems)
	}
}
