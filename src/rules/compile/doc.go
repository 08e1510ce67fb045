// Package compile checks configurations and turns them into a [rules.Set], or reports everything that is wrong, each
// [rules.Problem] with its place and how to fix it.
//
//	yamlrules   divvyrules   xdsrules
//	     \          |          /
//	       []DomainConfig, Options
//	                |
//	             Compile ----> Problems
//	                |
//	           rules.Set --- Domain --- one matcher of package match
package compile
