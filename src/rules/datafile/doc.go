// Package datafile reads files of values, and of values with limits, into compact tables.
//
//	values_from: banned.txt        limits_from: tenants.csv
//
//	# one value a line             value,requests_per_unit,burst
//	192.0.2.7                      acme,500
//	192.0.2.8                      "Smith, Jones & Co",unlimited
//
// A Table of a million values takes some 12 bytes for each, and the value itself. It has no pointers that the garbage
// collector follows for each value. A search allocates nothing.
package datafile
