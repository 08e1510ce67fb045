// Package divvyrules reads the rule files of Button's divvy, in their INI form ([ParseINI]) and their JSON form
// ([ParseJSON]). The result is an ordered list in a configuration for rules.Compile, whose domain is the name of the
// file:
//
//	[path=/pay/* ip=*]                  {Match: {path: /pay/*, ip: *}, Per: [ip], RateLimit:
//	creditLimit = 10             ->         {RequestsPerUnit: 10, Period: 60s, Algorithm: first_hit_window}}
//	resetSeconds = 60
//	actorField = ip
//
// Rules mean what divvy's documentation says. Where divvy 1.7.1 itself does something else, there is a warning.
package divvyrules
