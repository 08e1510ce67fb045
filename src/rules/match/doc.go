// Package match finds the rule of a descriptor, and explains how it was found. Package compile builds the matchers.
//
// A domain has one of three matchers. This is how they search for a=1, b=2:
//
//	Tree                        List                        WordTree ("tree of limits")
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
// Entries that name a hold, see [rules.Match.HoldOf], lead nowhere: in a tree of descriptors they follow those that
// lead to the rule.
package match
