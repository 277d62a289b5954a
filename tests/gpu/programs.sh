# The test programs that run.sh runs and pack.sh packs.
programs=(ops_test_values ops_test_edges optim_test_step optim_test_clip fsdp_test_programs
  backend_test_card)
