// Package rules answers one question: which rule applies to this descriptor?
//
// Readers of rule files and control planes fill a [DomainConfig]. [Compile] checks the configurations and turns them into an immutable
// [Set], or reports everything that is wrong, each [Problem] with its place and how to fix it. [Domain.FindRule] searches the Set.
//
//	yamlrules   divvyrules   xdsrules
//	     \          |          /
//	       []DomainConfig, Options
//	                |
//	             Compile ----> Problems
//	                |
//	               Set --- Domain --- one matcher
//
// A domain has one of three matchers. This is how they search for a=1, b=2:
//
//	descriptorTree              orderedList                 limitTree ("tree of limits")
//
//	root                        values of a and b           root
//	 |- a=1      exact,          |                           |- a         by name,
//	 |  |- b=x*  wildcards,      |- {c: *}       no           |  |- 1
//	 |  |- b     key alone,      |- {a: *} canary yes, charged |  |- *      or any other word
//	 |  |   ^ here it ends      |- {a: 1, b: 2} yes, decides   |     |- b
//	 |- a                       |- {}            not asked     |     |   ^ 2 has no node: it ends here
//
//	one level for each entry;   first match wins; entries   one level for each word, key and value;
//	the rule is where the       have no order               each node on the way is charged
//	entries end
//
// Entries that name a hold, see [Rule.HoldOf], lead nowhere: in a tree of descriptors they follow those that lead to the rule.
//
// A match is charged to the rule's ChargedLimits, or to the rule itself if it has none. [KeyFormat] writes the key of each counter.
package rules
