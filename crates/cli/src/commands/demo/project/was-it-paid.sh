if grep -q "^$SELVEDGE_CALL_KEY " paid.txt; then
  echo "{\"done\": true, \"result\": \"paid $2 to $1\"}"
else
  echo '{"done": false}'
fi
