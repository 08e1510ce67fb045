package backend

import "testing"

func TestAppendKeyOfName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"d_user_eve_1767225600":                                "d_user_eve_",
		"d_user_a_1_1767225600":                                "d_user_a_1_",
		"{d_user_eve_}|fw:300:1767225600":                      "d_user_eve_",
		"{d_user_eve_}action_pay_|gc:1.5":                      "d_user_eve_action_pay_",
		"{d_user_eve_}|fw:1month/15/America/New_York:17684316": "d_user_eve_",
		"{d_user_eve_}|fw:300|held:1767225600":                 "d_user_eve_",
		"{d_user_eve_}|fw:300|holds":                           "d_user_eve_",
		"{d_user_eve_}|co":                                     "d_user_eve_",
		"{d_user_a|b_}|co":                                     "d_user_a|b_",
		"d_user_eve_ (1m0s fixed_window)":                      "d_user_eve_",
		"d_user_a (b)_ (24h0m0s gcra with holds)":              "d_user_a (b)_",
		"d_user_eve_ (concurrency)":                            "d_user_eve_",
		"divvy:op=x:me_too":                                    "divvy:op=x:me_too",
		"":                                                     "",
		"_":                                                    "_",
		"{":                                                    "",
		"no_key)":                                              "no_key)",
	} {
		if got := string(AppendKeyOfName([]byte("x"), []byte(name))); got != "x"+want {
			t.Errorf("%s: %s, want %s", name, got[1:], want)
		}
	}
}
