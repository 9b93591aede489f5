from contextdesc.cli import main

main()
