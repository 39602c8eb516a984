# The line is the payment. The bank takes its time to answer for ben.
echo "$SELVEDGE_CALL_KEY $1 $2" >> paid.txt
[ "$1" != ben ] || sleep 60
echo "paid $2 to $1"
